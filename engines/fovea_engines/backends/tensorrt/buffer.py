"""Holds a tensor's memory: on the GPU, and page-locked on the host."""

from __future__ import annotations

from contextlib import ExitStack, closing

import numpy as np

from fovea_engines.backends.cuda.driver import Device
from fovea_engines.backends.cuda.resources import Stream
from fovea_engines.backends.tensorrt.tensors import Tensor
from fovea_engines.session import Array


class Buffer:
    """Memory for one tensor of the largest batch, on both sides.

    Args:
        device: current in this thread, as in every call.
        tensor: the tensor to hold.
        rows: of the largest batch.

    Attributes:
        tensor: the tensor to hold.
        memory: on the GPU.
    """

    def __init__(self, device: Device, tensor: Tensor, rows: int) -> None:
        self.tensor = tensor
        self._device = device
        size = rows * tensor.row_bytes
        with ExitStack() as made:
            self.memory = made.enter_context(closing(device.alloc(size)))
            self._pinned = made.enter_context(closing(device.pinned(size)))
            self._made = made.pop_all()
        self._rows: Array = self._pinned.array.view(tensor.dtype).reshape(rows, *tensor.row)

    def clear(self, stream: Stream) -> None:
        """Enqueue zeros for all of it: the engine also computes rows beyond a batch."""
        self._rows[...] = 0
        self._device.copy_in(self.memory, self._pinned, self._rows.nbytes, stream)

    def send(self, rows: Array, stream: Stream) -> None:
        """Copy rows to the host's side, and enqueue their copy to the GPU."""
        np.copyto(self._rows[: len(rows)], rows)
        self._device.copy_in(self.memory, self._pinned, rows.nbytes, stream)

    def fetch(self, rows: int, stream: Stream) -> None:
        """Enqueue the copy of the first rows to the host."""
        self._device.copy_out(self._pinned, self.memory, rows * self.tensor.row_bytes, stream)

    def read(self, rows: Array) -> None:
        """Copy the fetched rows into an array [rows, ...]."""
        np.copyto(rows, self._rows[: len(rows)])

    def close(self) -> None:
        """Release both sides."""
        del self._rows
        self._made.close()
