"""Defines the interface between an engine file and the runtime that executes it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.preprocessor import PlacedImage

Array = NDArray[Any]

NUMPY_NAMES = {"float": "float32", "double": "float64", "string": "object"}
"""ONNX Runtime's names of element types that numpy has under another."""


@cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        # The import registers the name with numpy.
        import ml_dtypes  # noqa: F401
    return np.dtype(name)


class Closing(Protocol):
    """Closes itself at the end of a `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Release everything. Calling it again does nothing."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        dtype: numpy's name of the element type, e.g. "float32".
        shape: with -1 where a dimension is dynamic; the batch comes first.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Return the element type as a numpy dtype."""
        return _numpy_dtype(self.dtype)


def sort_like(
    found: tuple[TensorSpec, ...], wanted: tuple[TensorSpec, ...]
) -> tuple[TensorSpec, ...]:
    """Return the tensors of a session in the order of the model's.

    TensorRT keeps their names and not their order; OpenVINO may rename them and keeps their order.
    """
    by_name = {spec.name: spec for spec in found}
    names = [spec.name for spec in wanted]
    return tuple(map(by_name.__getitem__, names)) if by_name.keys() == set(names) else found


def batched_outputs(session: Session) -> frozenset[str]:
    """Name the outputs whose first dimension is the batch; others are whole, such as [k, 6]."""
    rows = session.inputs[0].shape[:1]
    return frozenset(spec.name for spec in session.outputs if spec.shape[:1] == rows)


class Session(Closing, Protocol):
    """A loaded engine that owns its memory; a context manager.

    `infer` may be called from several threads at once. Tensors are in the runtime's order, which an
    `Engine` makes the model's.

    Attributes:
        max_batch: most rows of one call.
        concurrency: number of parallel calls that keep the device busy.
        steady: True if a call returns as soon as this thread has computed, after a time that
            depends on the shapes of its inputs and not on their values.
        offloads: True if another device computes while a call waits. It runs batches faster than
            single rows, and images must be decoded ahead of it.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int
    concurrency: int
    steady: bool
    offloads: bool

    def infer(self, feeds: Mapping[str, Array], *, alone: bool = True) -> dict[str, Array]:
        """Run one batch.

        Args:
            feeds: an array per input, C-contiguous, [rows, ...]; not written to, not kept.
            alone: no other call waits, so this one may use every core. Under load one core per call
                is faster (measured: docs of `benchmarks/backends.py`), so the caller decides.

        Returns:
            An array per output, [rows, ...], owned by the caller. A model with a fixed batch may
            have others: see `batched_outputs`.

        Raises:
            InferenceFailed: the runtime refused the input or failed.
        """
        ...


@runtime_checkable
class ImageSession(Session, Protocol):
    """A session whose device also letterboxes images; `infer` still takes rows."""

    def place(self, pixels: NDArray[np.uint8]) -> tuple[PlacedImage, LetterboxMap]:
        """Prepare an image; safe from any number of threads.

        The pixels are uint8 [h, w, 3], RGB, upright; kept, and copied only if they are too large
        for the device's buffer. The map leads from them to the model's input.
        """
        ...

    def infer_images(self, images: Sequence[PlacedImage]) -> dict[str, Array]:
        """Run one batch of results of `place`, at most `max_batch`; as `infer` in all else."""
        ...
