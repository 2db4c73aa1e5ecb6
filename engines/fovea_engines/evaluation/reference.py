"""Runs unchanged source models. Engines are compared with their outputs."""

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
        row: preprocessed image, [1, ...].
        want: outputs of the source model by name.
        ranked: names of the outputs that are sorted by score. The order of their rows may depend on
            the runtime.
        replaced: True if `want` is computed by OpenVINO, because the outputs of ONNX Runtime were
            not finite.
    """

    name: str
    row: Array
    want: Outputs
    ranked: Set[str] = frozenset()
    replaced: bool = False


Unsound = Callable[[Outputs], str | None]
"""Function that returns the name of the first array with NaN or infinity for one image.

If all arrays are usable, the function returns None.
"""


def unsound_with(head: Head | None) -> Unsound:
    """Return a check of the arrays that a head decodes. Without a head, it checks all outputs."""
    if head is not None:
        return lambda outputs: head.unsound(outputs, 0)
    return lambda outputs: next(
        (f"output {name}" for name, values in outputs.items() if not is_sound(values)), None
    )


class ReferenceSession:
    """Runs a model for one image, unchanged.

    The class does not use a backend, because the reference must not share code with the engines
    that it checks. In addition to the outputs, `run` can return the tensors that are passed to the
    constructor.

    Raises:
        UnsupportedModel: ONNX Runtime cannot load the model. The constructor raises this error.
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
    """Return the file. If the model uses TensorRT's plugin for NMS, return the changed model.

    In the changed model, standard operators replace the plugin.
    """
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        if content.find(PLUGIN.encode()) < 0:
            return path
    serialised: bytes = load(path).proto.SerializeToString()
    return serialised


class Reference:
    """Computes the outputs of an unchanged model. Engines are compared with them.

    ONNX Runtime computes the outputs. If they are not finite for an image, OpenVINO computes them
    too, and its outputs are used if they are finite. Outputs that are not finite are the result of
    an error in the runtime.
    """

    def __init__(
        self, model: Path | onnx.ModelProto, outputs: Sequence[str], unsound: Unsound
    ) -> None:
        self._model = model
        self._outputs = outputs
        self._unsound = unsound
        self._session = ReferenceSession(model)

    def run(self, row: Array) -> tuple[Outputs, bool]:
        """Return the outputs for one preprocessed image, [1, ...].

        The second value is True if OpenVINO computed the outputs. If the outputs of both runtimes
        are not finite, the outputs of ONNX Runtime are returned.
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
        UnsupportedModel: for an image, both runtimes compute an array that is not finite. Only the
            arrays that `head` decodes are checked; without a head, all outputs.
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
                    f"output {name} has the shape {list(array.shape)} for a batch of "
                    f"{len(batch)}, so it does not separate the images of a batch: leave "
                    "--max-batch out"
                )
        for i, sample in enumerate(batch):
            yield (
                sample,
                {n: array[i : i + 1] if n in batched else array for n, array in found.items()},
            )
