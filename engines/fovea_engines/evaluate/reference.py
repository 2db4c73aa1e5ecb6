"""Runs source models with plain ONNX Runtime, as the reference for engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fovea_engines.detect.size_values import source_feeds
from fovea_engines.engine import Engine
from fovea_engines.evaluate.samples import read_rows
from fovea_engines.graph.efficient_nms import PLUGIN
from fovea_engines.graph.load import load
from fovea_engines.graph.plain_session import (
    cannot_load,
    cannot_run,
    onnxruntime_errors,
    open_plain,
    showing,
)
from fovea_engines.session import Array, TensorSpec, batched_outputs
from fovea_preprocess.errors import UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec

if TYPE_CHECKING:
    import onnx

Outputs = Mapping[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The name of an image, its input row [1, ...], and the source model's outputs.

    The rows of outputs that are `ranked` may come in another order on another runtime.
    """

    name: str
    row: Array
    want: Outputs
    ranked: Set[str] = frozenset()


class ReferenceSession:
    """A model of one image, run unchanged; UnsupportedModel if ONNX Runtime cannot.

    It does not use a backend: the reference must not share code with what it checks. The tensors
    given can be asked for beside the outputs.
    """

    def __init__(self, model: Path | onnx.ModelProto, tensors: Iterable[str] = ()) -> None:
        with onnxruntime_errors(cannot_load):
            self._session = open_plain(
                _runnable(model) if isinstance(model, Path) else showing(model, tensors), fused=True
            )
        self._inputs = tuple(
            TensorSpec(
                node.name,
                "float32" if node.type == "tensor(float)" else node.type[len("tensor(") : -1],
                tuple(size if isinstance(size, int) else -1 for size in node.shape),
            )
            for node in self._session.get_inputs()
        )

    def run(self, outputs: Sequence[str], row: Array) -> list[Array]:
        """Return the named outputs for one preprocessed image, [1, ...]."""
        with onnxruntime_errors(cannot_run):
            found: list[Array] = self._session.run(list(outputs), source_feeds(self._inputs, row))
        return found


def _runnable(path: Path) -> Path | bytes:
    """Return the file; its content where it has TensorRT's suppression, in standard operators."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        if content.find(PLUGIN.encode()) < 0:
            return path
    serialised: bytes = load(path).proto.SerializeToString()
    return serialised


def read_samples(
    source: Path,
    spec: PreprocessSpec,
    outputs: Sequence[str],
    images: Path | None,
    most: int,
    ranked: Set[str] = frozenset(),
) -> Iterator[Sample]:
    """Run the source model on images, as `sample_images` yields them, one at a time."""
    reference = ReferenceSession(source)
    for name, row in read_rows(spec, images, most):
        want = dict(zip(outputs, reference.run(outputs, row), strict=True))
        yield Sample(name, row, want, ranked)


def answers(engine: Engine, samples: Iterable[Sample]) -> Iterator[tuple[Sample, Outputs]]:
    """Yield each sample with the engine's answer; batches are as large as the engine takes.

    Raises UnsupportedModel if the answers of a batch cannot be told apart.
    """
    session = engine.session
    batched = batched_outputs(session)
    [feed] = session.inputs
    remaining = iter(samples)
    while batch := list(islice(remaining, max(1, session.max_batch))):
        found = session.infer({feed.name: np.concatenate([sample.row for sample in batch])})
        for name, array in found.items():
            if len(batch) > 1 and array.shape[:1] != (len(batch),):
                raise UnsupportedModel(
                    f"output {name} is {list(array.shape)} for a batch of {len(batch)}, so the "
                    "images of a batch cannot be told apart: leave --max-batch out"
                )
        for i, sample in enumerate(batch):
            yield (
                sample,
                {n: array[i : i + 1] if n in batched else array for n, array in found.items()},
            )
