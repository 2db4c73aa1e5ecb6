"""Holds memory for the largest batch, on the GPU and page-locked on the host.

The device is current in the thread of every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

import numpy as np

from fovea_engines.backends.cuda.driver import Device
from fovea_engines.backends.cuda.letterbox import LetterboxKernel, packed_size
from fovea_engines.backends.cuda.resources import Stream
from fovea_engines.backends.tensorrt.tensors import Tensor
from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidModel
from fovea_preprocess.placed import PlacedImage
from fovea_preprocess.spec import PreprocessSpec

_FULL_HD = 1920 * 1080 * 3
# Enough for 43 images of full HD; those of larger batches must be smaller.
_MOST_IMAGE_BYTES = 256 << 20


class Buffer:
    """Memory of one tensor, for a number of rows; `memory` is on the GPU."""

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


class ImageBuffer:
    """Memory of images of any sizes, which a kernel letterboxes into the rows of the one input.

    The kernel is not closed with it. If its output is not the engine's one input, that is
    `InvalidModel`.
    """

    def __init__(
        self, device: Device, letterbox: LetterboxKernel, inputs: Sequence[Buffer], rows: int
    ) -> None:
        _check_rows(letterbox.spec, [buffer.tensor for buffer in inputs])
        self._device = device
        self._letterbox = letterbox
        self._batch = inputs[0].memory
        size = staging_bytes(letterbox.spec, rows)
        with ExitStack() as made:
            self._memory = made.enter_context(closing(device.alloc(size)))
            self._pinned = made.enter_context(closing(device.pinned(size)))
            self._made = made.pop_all()

    def send(self, images: Sequence[PlacedImage], rows: int, stream: Stream) -> None:
        """Copy images to the host's side; enqueue their copy to the GPU, and their letterbox.

        No image is larger than `most_image_bytes`. Rows past the last image become padding.
        """
        size = self._letterbox.pack(images, rows, self._pinned)
        self._device.copy_in(self._memory, self._pinned, size, stream)
        self._letterbox(stream, self._memory, rows, self._batch)

    def close(self) -> None:
        """Release both sides."""
        self._made.close()


def most_image_bytes(spec: PreprocessSpec, rows: int) -> int:
    """Return the size in bytes of the largest image that fits into each row of the batch."""
    own = spec.height * spec.width * 3
    return max(own, min(_FULL_HD, _MOST_IMAGE_BYTES // rows))


def staging_bytes(spec: PreprocessSpec, rows: int) -> int:
    """Return the memory of an `ImageBuffer` in bytes, on either side."""
    return packed_size(rows, rows * most_image_bytes(spec, rows))


def _check_rows(spec: PreprocessSpec, inputs: Sequence[Tensor]) -> None:
    # On the GPU, nothing else would prevent the kernel from writing beyond the end.
    if [(i.row, i.dtype.name) for i in inputs] != [(spec.row_shape, spec.dtype)]:
        raise InvalidModel(
            f"the letterbox kernel beside the engine makes rows of {spec.dtype} "
            f"{list(spec.row_shape)}, which is not what the engine takes: build it again"
        )
