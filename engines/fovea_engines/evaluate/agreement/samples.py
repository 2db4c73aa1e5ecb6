"""Runs the source model on images, for comparison with an engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from fovea_engines.engine import Engine
from fovea_engines.evaluate.reference import ReferenceSession
from fovea_engines.evaluate.samples import sample_images
from fovea_engines.session import Array
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PreprocessSpec

Outputs = Mapping[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The name of an image, its input row, and the source model's outputs; [1, ...] each."""

    name: str
    row: Array
    want: Outputs


def read_rows(spec: PreprocessSpec, images: Path | None, most: int) -> Iterator[tuple[str, Array]]:
    """Yield the name and the input row, [1, ...], of at most so many images; as `sample_images`."""
    preprocessor = Preprocessor(spec)
    for name, pixels in sample_images(images, most):
        row = np.empty((1, *spec.row_shape), spec.dtype)
        preprocessor(pixels, row[0])
        yield name, row


def read_samples(
    source: Path,
    spec: PreprocessSpec,
    outputs: Sequence[str],
    images: Path | None,
    most: int,
) -> Iterator[Sample]:
    """Run the source model on images with plain ONNX Runtime, one at a time; as `read_rows`.

    Raises:
        InvalidOption: the folder has no image.
        UnsupportedModel: ONNX Runtime cannot run the source.
    """
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
