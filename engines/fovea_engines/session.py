"""The interface between an engine file and the runtime that runs it."""

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
"""ONNX Runtime's name of an element type -> NumPy's name, if they differ."""


@cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        # importing ml_dtypes registers the name with NumPy
        import ml_dtypes  # noqa: F401
    return np.dtype(name)


class Closing(Protocol):
    """An object that closes itself at the end of a `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Release all resources. A second call has no effect."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        name: name of the tensor.
        dtype: NumPy's name of the element type, e.g. "float32".
        shape: dimensions, batch first; -1 for a dynamic dimension.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Return the element type as a NumPy dtype."""
        return _numpy_dtype(self.dtype)


def sort_like(
    found: tuple[TensorSpec, ...], wanted: tuple[TensorSpec, ...]
) -> tuple[TensorSpec, ...]:
    """Return the tensors of a session in the order of the model.

    TensorRT keeps the names but not the order. OpenVINO may rename tensors but keeps the order.
    """
    by_name = {spec.name: spec for spec in found}
    names = [spec.name for spec in wanted]
    return tuple(map(by_name.__getitem__, names)) if by_name.keys() == set(names) else found


def batched_outputs(session: Session) -> frozenset[str]:
    """Return the names of outputs whose first dimension is the batch, so not e.g. [k, 6]."""
    rows = session.inputs[0].shape[:1]
    return frozenset(spec.name for spec in session.outputs if spec.shape[:1] == rows)


class Session(Closing, Protocol):
    """A loaded engine that owns its memory. It is a context manager.

    Several threads may call `infer` at the same time. The tensors are in the order of the runtime;
    an `Engine` sorts them in the order of the model.

    Attributes:
        inputs: inputs of the engine.
        outputs: outputs of the engine.
        max_batch: largest batch size of a call; 0 if the model has no batch dimension.
        concurrency: number of parallel calls that keep the device busy.
        steady: True if a call returns as soon as this thread has computed, and its duration depends
            on the shapes of its inputs but not on their values.
        offloads: True if another device computes while a call waits. Such a device is faster with
            batches, and images must be decoded ahead of it.
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
            feeds: name of each input -> its array, C-contiguous, [rows, ...]; it is neither changed
                nor kept.
            alone: True if no other call waits, so this call may use all cores. Under load one core
                per call is faster (measured: docs of `benchmarks/backends.py`), so the caller
                decides.

        Returns:
            Name of each output -> its array [rows, ...], which the caller owns. A model with a
            fixed batch may have outputs of other shapes: see `batched_outputs`.

        Raises:
            InferenceFailed: the runtime rejected the input, or failed.
        """
        ...


@runtime_checkable
class ImageSession(Session, Protocol):
    """A session whose device also letterboxes images. Its `infer` still takes input rows."""

    def place(self, pixels: NDArray[np.uint8]) -> tuple[PlacedImage, LetterboxMap]:
        """Prepare an image. Any number of threads may call this at the same time.

        Args:
            pixels: uint8 [h, w, 3], RGB, upright.

        Returns:
            The image, and the map from its pixels to the model's input. The pixels are copied only
            if they are too large for the device's buffer.
        """
        ...

    def infer_images(self, images: Sequence[PlacedImage]) -> dict[str, Array]:
        """Run one batch of at most `max_batch` results of `place`; otherwise like `infer`."""
        ...
