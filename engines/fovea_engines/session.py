"""Defines `Session`, the interface of all runtimes that run an engine file."""

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
        # The import of ml_dtypes registers the name "bfloat16" with NumPy.
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
        shape: length of each dimension, the batch first; -1 for a dynamic dimension.
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
    """Return the tensors of a session (`found`) in the order of the model (`wanted`).

    TensorRT keeps the names of the model but not its order. OpenVINO keeps the order but may rename
    tensors. So the tensors are sorted by name, or returned unchanged if the names differ.
    """
    by_name = {spec.name: spec for spec in found}
    names = [spec.name for spec in wanted]
    return tuple(map(by_name.__getitem__, names)) if by_name.keys() == set(names) else found


def batched_outputs(session: Session) -> frozenset[str]:
    """Return the names of the outputs whose first dimension is the batch.

    An output [k, 6] with k boxes of all images is an example of another output.
    """
    rows = session.inputs[0].shape[:1]
    return frozenset(spec.name for spec in session.outputs if spec.shape[:1] == rows)


class Session(Closing, Protocol):
    """A loaded engine that owns its memory. It is a context manager.

    Several threads may call `infer` at the same time. `inputs` and `outputs` have the order of the
    runtime until an `Engine` sorts them in the order of the model.

    Attributes:
        inputs: inputs of the engine.
        outputs: outputs of the engine.
        max_batch: largest batch size of a call; 0 if the model has no batch dimension.
        concurrency: number of parallel calls that keep the device busy.
        steady: True if a call does not wait for a device, and its duration depends on the shapes of
            its inputs but not on their values.
        offloads: True if a device such as a GPU computes while the calling thread waits. Such a
            device is faster with batches. To keep it busy, the server decodes the next images
            during a call.
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
            feeds: name of each input -> its array, C-contiguous, [rows, ...]. The session neither
                changes the arrays nor keeps references to them.
            alone: True if no other call waits. Then this call may use all cores. Under load, a
                server completes more calls per second with one core per call (see
                `benchmarks/backends.py`).

        Returns:
            Name of each output -> its array [rows, ...], which the caller owns. A model with a
            fixed batch size may have outputs without a batch dimension: see `batched_outputs`.

        Raises:
            InferenceFailed: the runtime rejected an input, or failed during the computation.
        """
        ...


@runtime_checkable
class ImageSession(Session, Protocol):
    """A session whose device also letterboxes images.

    Its `infer` takes preprocessed arrays, like the `infer` of other sessions.
    """

    def place(self, pixels: NDArray[np.uint8]) -> tuple[PlacedImage, LetterboxMap]:
        """Prepare an image. Any number of threads may call this at the same time.

        Args:
            pixels: uint8 [h, w, 3], RGB, upright.

        Returns:
            The image for `infer_images`, and the map from its pixels to the model's input. The
            image refers to `pixels` without a copy, unless they are too large for the device's
            buffer.
        """
        ...

    def infer_images(self, images: Sequence[PlacedImage]) -> dict[str, Array]:
        """Run one batch of images that `place` returned, and return the outputs like `infer`.

        Args:
            images: at least 1 and at most `max_batch` images.
        """
        ...
