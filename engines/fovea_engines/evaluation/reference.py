"""Runs source models unchanged, as the reference for engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_rows
from fovea_engines.heads.base import Head, is_sound
from fovea_engines.heads.efficient_nms import PLUGIN
from fovea_engines.heads.image_inputs import source_feeds
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.plain_session import (
    cannot_load,
    cannot_run,
    expose_tensors,
    onnxruntime_errors,
    open_openvino,
    open_plain,
)
from fovea_engines.session import Array, TensorSpec, batched_outputs
from fovea_preprocess.errors import UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec

if TYPE_CHECKING:
    import onnx

Outputs = Mapping[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The source model's outputs for one image.

    Attributes:
        name: name of the image.
        row: input of the model, [1, ...].
        want: outputs of the source model.
        ranked: names of outputs whose rows may have another order on another runtime.
        replaced: True if ONNX Runtime's outputs were not finite, so these are OpenVINO's.
    """

    name: str
    row: Array
    want: Outputs
    ranked: Set[str] = frozenset()
    replaced: bool = False


Unsound = Callable[[Outputs], str | None]
"""Returns what is NaN or infinite in the outputs for one image, or None if all are usable."""


def unsound_with(head: Head | None) -> Unsound:
    """Return a check of the arrays that a head decodes; without a head, of all outputs."""
    if head is not None:
        return lambda outputs: head.unsound(outputs, 0)
    return lambda outputs: next(
        (f"output {name}" for name, values in outputs.items() if not is_sound(values)), None
    )


class ReferenceSession:
    """Runs a model for one image, unchanged.

    It does not use a backend: the reference must not share code with the engines it checks. The
    given tensors can be requested in addition to the outputs.

    Raises:
        UnsupportedModel: ONNX Runtime cannot load the model; raised on construction.
    """

    def __init__(self, model: Path | onnx.ModelProto, tensors: Iterable[str] = ()) -> None:
        with onnxruntime_errors(cannot_load):
            self._session = open_plain(
                _runnable(model) if isinstance(model, Path) else expose_tensors(model, tensors),
                fused=True,
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
        """Return the named outputs for one preprocessed image, [1, ...].

        Raises:
            UnsupportedModel: ONNX Runtime cannot run the model.
        """
        with onnxruntime_errors(cannot_run):
            found: list[Array] = self._session.run(list(outputs), self.feeds(row))
        return found

    def feeds(self, row: Array) -> dict[str, Array]:
        """Return all inputs for one preprocessed image, [1, ...]."""
        return source_feeds(self._inputs, row)


def _runnable(path: Path) -> Path | bytes:
    """Return the file; or its content with TensorRT's plugin for NMS replaced, if it has that."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        if content.find(PLUGIN.encode()) < 0:
            return path
    serialised: bytes = load(path).proto.SerializeToString()
    return serialised


class Reference:
    """The outputs of an unchanged model, which engines are compared with.

    They are ONNX Runtime's outputs. If these are not finite for an image and OpenVINO's are, they
    are OpenVINO's: either runtime may have an error, and outputs that are not finite are wrong.
    """

    def __init__(
        self, model: Path | onnx.ModelProto, outputs: Sequence[str], unsound: Unsound
    ) -> None:
        self._model = model
        self._outputs = outputs
        self._unsound = unsound
        self._session = ReferenceSession(model)

    def run(self, row: Array) -> tuple[Outputs, bool]:
        """Return the outputs for one preprocessed image, [1, ...], and whether they are OpenVINO's.

        If the outputs of both runtimes are not finite, they are ONNX Runtime's.
        """
        found = self._name_outputs(self._session.run(self._outputs, row))
        if self._unsound(found) is not None:
            with suppress(UnsupportedModel):
                other = self._name_outputs(self._openvino(self._session.feeds(row)))
                if self._unsound(other) is None:
                    return other, True
        return found, False

    def _name_outputs(self, arrays: Sequence[Array]) -> Outputs:
        return dict(zip(self._outputs, arrays, strict=True))

    @cached_property
    def _openvino(self) -> Callable[[Outputs], list[Array]]:
        model = self._model
        file = _runnable(model) if isinstance(model, Path) else model.SerializeToString()
        return open_openvino(file, self._outputs)


def read_samples(
    source: Path | onnx.ModelProto,
    spec: PreprocessSpec,
    outputs: Sequence[str],
    images: Path | None,
    most: int,
    ranked: Set[str] = frozenset(),
    *,
    head: Head | None,
) -> Iterator[Sample]:
    """Run the source model on the images of `sample_images`, one at a time.

    Raises:
        UnsupportedModel: on an image, an array that the `head` decodes (without a head, an output)
            is not finite on any runtime.
    """
    unsound = unsound_with(head)
    reference = Reference(source, outputs, unsound)
    for name, row in read_rows(spec, images, most):
        want, replaced = reference.run(row)
        if (broken := unsound(want)) is not None:
            raise UnsupportedModel(
                f"the source model returns NaN or infinity in {broken} for {name}, with ONNX "
                "Runtime and with OpenVINO, so no engine can be compared with it: check that "
                "--preprocess matches the training, or export it again in float32; if NaN is "
                "intended, serve the file without a build, as NAME/1/model.onnx"
            )
        yield Sample(name, row, want, ranked, replaced)


def answers(engine: Engine, samples: Iterable[Sample]) -> Iterator[tuple[Sample, Outputs]]:
    """Yield each sample with the engine's outputs, in batches as large as the engine accepts.

    Raises:
        UnsupportedModel: the outputs of a batch cannot be assigned to its images.
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
