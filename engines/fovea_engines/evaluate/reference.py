"""Runs source models with plain ONNX Runtime, as the reference for engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fovea_engines.engine import Engine
from fovea_engines.evaluate.samples import read_rows
from fovea_engines.session import Array
from fovea_preprocess.errors import UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec

if TYPE_CHECKING:
    import onnx

Outputs = Mapping[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The name of an image, its input row, and the source model's outputs; [1, ...] each."""

    name: str
    row: Array
    want: Outputs


@contextmanager
def onnxruntime_errors(step: Literal["load", "run"]) -> Iterator[None]:
    """Raise ONNX Runtime's errors in the block as `UnsupportedModel`."""
    import onnxruntime as ort

    errors = ort.capi.onnxruntime_pybind11_state
    try:
        yield
    except (
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.NotImplemented,
        errors.RuntimeException,
    ) as error:
        raise UnsupportedModel(f"ONNX Runtime cannot {step} the model: {error}") from error


class ReferenceSession:
    """A model with one input, run unchanged; UnsupportedModel if ONNX Runtime cannot.

    It does not use a backend: the reference must not share code with what it checks. The tensors
    `showing` can be asked for beside the outputs.
    """

    def __init__(self, model: Path | onnx.ModelProto, showing: Iterable[str] = ()) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        # Q/DQ computed as it is written: fused, it overflows on CPUs without VNNI.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        with onnxruntime_errors("load"):
            self._session = ort.InferenceSession(
                model if isinstance(model, Path) else _showing(model, showing),
                options,
                ["CPUExecutionProvider"],
            )
        [feed] = self._session.get_inputs()
        self._input = feed.name

    def run(self, outputs: Sequence[str], row: Array) -> list[Array]:
        """Return the named outputs for one image, [1, ...]."""
        with onnxruntime_errors("run"):
            found: list[Array] = self._session.run(list(outputs), {self._input: row})
        return found


def _showing(model: onnx.ModelProto, names: Iterable[str]) -> bytes:
    shown = deepcopy(model)
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    for name in names:
        if name not in known:
            shown.graph.output.add(name=name)
    serialised: bytes = shown.SerializeToString()
    return serialised


def read_samples(
    source: Path, spec: PreprocessSpec, outputs: Sequence[str], images: Path | None, most: int
) -> Iterator[Sample]:
    """Run the source model on images, as `sample_images` yields them, one at a time."""
    reference = ReferenceSession(source)
    for name, row in read_rows(spec, images, most):
        yield Sample(name, row, dict(zip(outputs, reference.run(outputs, row), strict=True)))


def answers(engine: Engine, samples: Iterable[Sample]) -> Iterator[tuple[Sample, Outputs]]:
    """Yield each sample with the engine's answer; batches are as large as the engine takes."""
    session = engine.session
    [feed] = session.inputs
    remaining = iter(samples)
    while batch := list(islice(remaining, max(1, session.max_batch))):
        found = session.infer({feed.name: np.concatenate([sample.row for sample in batch])})
        for i, sample in enumerate(batch):
            yield sample, {name: array[i : i + 1] for name, array in found.items()}
