"""Holds images of any sizes for the letterbox on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

from fovea_engines.backends.cuda.driver import Device
from fovea_engines.backends.cuda.letterbox import LetterboxKernel, packed_size
from fovea_engines.backends.cuda.resources import Stream
from fovea_engines.backends.tensorrt.buffer import Buffer
from fovea_engines.backends.tensorrt.tensors import Tensor
from fovea_preprocess.errors import InvalidModel
from fovea_preprocess.placed import PlacedImage
from fovea_preprocess.spec import PreprocessSpec

_FULL_HD = 1920 * 1080 * 3
# Enough for 43 of these; the images of larger batches must be smaller.
_MOST_OF_A_SLOT = 256 << 20


def most_image_bytes(spec: PreprocessSpec, rows: int) -> int:
    """Return the largest image size in bytes that fits into each row of a slot's largest batch."""
    own = spec.height * spec.width * 3
    return max(own, min(_FULL_HD, _MOST_OF_A_SLOT // rows))


def staging_bytes(spec: PreprocessSpec, rows: int) -> int:
    """Return the memory of an `ImageBuffer`, on either side."""
    return packed_size(rows, rows * most_image_bytes(spec, rows))


class ImageBuffer:
    """Memory for the images of the largest batch, on both sides.

    Args:
        device: current in this thread, as in every call.
        letterbox: kernel that makes the batch; not closed with the buffer.
        inputs: of the engine.
        rows: of the largest batch.

    Raises:
        InvalidModel: the kernel's output is not the engine's one input.
    """

    def __init__(
        self, device: Device, letterbox: LetterboxKernel, inputs: Sequence[Buffer], rows: int
    ) -> None:
        _check(letterbox.spec, [buffer.tensor for buffer in inputs])
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

        Args:
            images: at most `rows`, none larger than `most_image_bytes`.
            rows: rows of the input to fill; those past the last image become padding.
            stream: of the copy and the kernel.
        """
        size = self._letterbox.pack(images, rows, self._pinned)
        self._device.copy_in(self._memory, self._pinned, size, stream)
        self._letterbox(stream, self._memory, rows, self._batch)

    def close(self) -> None:
        """Release both sides."""
        self._made.close()


def _check(spec: PreprocessSpec, inputs: Sequence[Tensor]) -> None:
    # On the GPU, nothing else would prevent the kernel from writing beyond the end.
    if [(i.row, i.dtype.name) for i in inputs] != [(spec.row_shape, spec.dtype)]:
        raise InvalidModel(
            f"the letterbox kernel beside the engine makes rows of {spec.dtype} "
            f"{list(spec.row_shape)}, which is not what the engine takes: build it again"
        )
