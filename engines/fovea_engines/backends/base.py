"""The one seam between an engine file and the runtime that executes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        name: as in the model.
        dtype: numpy's name of the element type, e.g. "float32".
        shape: with -1 where a dimension is dynamic; the batch comes first.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The element type as numpy knows it."""
        return np.dtype(self.dtype)


class Session(Protocol):
    """An engine that is loaded and owns its memory; a context manager.

    `infer` may be called from several threads at once.

    Attributes:
        inputs: in the model's order.
        outputs: in the model's order.
        max_batch: most rows one call may carry.
        concurrency: how many calls side by side keep the device busy; the server runs as many
            owner threads.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int
    concurrency: int

    def infer(self, feeds: Mapping[str, Array], *, alone: bool = True) -> dict[str, Array]:
        """Run one batch.

        Args:
            feeds: an array per input, C-contiguous, [rows, ...]; not written to, not kept.
            alone: nothing else waits, so this call may use every core. Under load a core a call
                is faster (measured: docs of `benchmarks/backends.py`), so the caller says which.

        Returns:
            An array per output, [rows, ...], owned by the caller.

        Raises:
            InferenceFailed: the runtime refused the input or broke.
        """
        ...

    def close(self) -> None:
        """Give everything back. Calling it again does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
