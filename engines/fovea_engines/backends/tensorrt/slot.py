"""Runs one batch at a time on the GPU, with a stream, memory, and a context for each batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress

import numpy as np

from fovea_engines.backends.tensorrt.batch_context import BatchContext, Bucket, Contexts, Recorder
from fovea_engines.backends.tensorrt.cuda.driver import Device, megabytes
from fovea_engines.backends.tensorrt.cuda.letterbox import LetterboxKernel, packed_size
from fovea_engines.backends.tensorrt.cuda.quiet import QUIET
from fovea_engines.backends.tensorrt.cuda.resources import Stream
from fovea_engines.backends.tensorrt.tensors import Tensor
from fovea_engines.session import Array
from fovea_preprocess.errors import BackendError, InferenceFailed, InvalidModel, OutOfMemory
from fovea_preprocess.preprocessor import PlacedImage
from fovea_preprocess.spec import PreprocessSpec
from fovea_preprocess.text import counted

_FULL_HD = 1920 * 1080 * 3
# Largest size of a batch's images in bytes. It fits 43 images of full HD; larger batches need
# smaller images.
_MAX_IMAGE_BYTES = 256 << 20


class _Staging:
    """GPU memory, and page-locked host memory of the same size."""

    def __init__(self, device: Device, size: int) -> None:
        self._device = device
        with ExitStack() as made:
            self.memory = made.enter_context(closing(device.alloc(size)))
            self._pinned = made.enter_context(closing(device.pinned(size)))
            self._made = made.pop_all()

    def close(self) -> None:
        """Release the memory on both sides."""
        self._made.close()


class Buffer(_Staging):
    """Memory of one tensor for a number of rows; `memory` is on the GPU."""

    def __init__(self, device: Device, tensor: Tensor, rows: int) -> None:
        super().__init__(device, rows * tensor.row_bytes)
        self.tensor = tensor
        self._rows: Array = self._pinned.array.view(tensor.dtype).reshape(rows, *tensor.row)

    def clear(self, stream: Stream) -> None:
        """Enqueue zeros for the whole buffer: the engine also computes rows beyond a batch."""
        self._rows[...] = 0
        self._device.copy_in(self.memory, self._pinned, self._rows.nbytes, stream)

    def send(self, rows: Array, stream: Stream) -> None:
        """Copy rows into host memory, and enqueue their copy to the GPU."""
        np.copyto(self._rows[: len(rows)], rows)
        self._device.copy_in(self.memory, self._pinned, rows.nbytes, stream)

    def fetch(self, rows: int, stream: Stream) -> None:
        """Enqueue the copy of the first rows to the host."""
        self._device.copy_out(self._pinned, self.memory, rows * self.tensor.row_bytes, stream)

    def read(self, rows: Array) -> None:
        """Copy the fetched rows into an array [rows, ...]."""
        np.copyto(rows, self._rows[: len(rows)])

    def close(self) -> None:
        """Release the memory on both sides."""
        del self._rows
        super().close()


class ImageBuffer(_Staging):
    """Memory of images of any size. A kernel letterboxes them into the rows of the only input.

    The kernel is not closed with the buffer.

    Raises:
        InvalidModel: the rows of the kernel differ from the only input of the engine.
    """

    def __init__(
        self, device: Device, letterbox: LetterboxKernel, inputs: Sequence[Buffer], rows: int
    ) -> None:
        _check_rows(letterbox.spec, [buffer.tensor for buffer in inputs])
        super().__init__(device, staging_bytes(letterbox.spec, rows))
        self._letterbox = letterbox
        self._batch = inputs[0].memory

    def send(self, images: Sequence[PlacedImage], rows: int, stream: Stream) -> None:
        """Copy images into host memory; enqueue their copy to the GPU and the letterbox kernel.

        No image may exceed `most_image_bytes`. Rows after the last image become padding.
        """
        size = self._letterbox.pack(images, rows, self._pinned)
        self._device.copy_in(self.memory, self._pinned, size, stream)
        self._letterbox(stream, self.memory, rows, self._batch)


def most_image_bytes(spec: PreprocessSpec, rows: int) -> int:
    """Return the size in bytes of the largest image that fits into each row of a batch."""
    own = spec.height * spec.width * 3
    return max(own, min(_FULL_HD, _MAX_IMAGE_BYTES // rows))


def staging_bytes(spec: PreprocessSpec, rows: int) -> int:
    """Return the memory of an `ImageBuffer` in bytes, on each side."""
    return packed_size(rows, rows * most_image_bytes(spec, rows))


def _check_rows(spec: PreprocessSpec, inputs: Sequence[Tensor]) -> None:
    # Nothing else would prevent the kernel from writing beyond the end of the buffer on the GPU.
    if [(i.row, i.dtype.name) for i in inputs] != [(spec.row_shape, spec.dtype)]:
        raise InvalidModel(
            f"the letterbox kernel writes rows of {spec.dtype} {list(spec.row_shape)}, and the "
            "engine takes other rows: build it again"
        )


def check_memory(device: Device, slots: int, activations: int, buffers: int, rows: int) -> None:
    """Check that the free memory is enough for all slots. The device must be current.

    Args:
        device: the GPU.
        slots: number of slots.
        activations: bytes of working memory per slot.
        buffers: bytes per slot for inputs, outputs, and images that become inputs.
        rows: largest batch size.

    Raises:
        OutOfMemory: the free memory is too small.
    """
    needed = slots * (activations + buffers)
    free, total = device.memory()
    if needed <= free:
        return
    ways = [f"a build with a --max-batch below {rows}"] if rows > 1 else []
    ways += ["stopping what else uses the GPU"]
    raise OutOfMemory(
        f"the engine needs {megabytes(needed)} besides its weights, and {device.name} has "
        f"{megabytes(free)} of {megabytes(total)} free: {counted(slots, 'slot')} of "
        f"{megabytes(activations)} for activations, and {megabytes(buffers)} for inputs and "
        f"outputs. To reduce it: {', '.join(ways)}"
    )


class Slot:
    """Runs one batch at a time. Batches of different slots overlap.

    The contexts of all buckets (smallest first) share all memory, because only one of them runs at
    a time. The device must be current in every call. `activations` is the size of the working
    memory in bytes. The letterbox kernel is not closed with the slot.
    """

    def __init__(
        self,
        device: Device,
        contexts: Contexts,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        buckets: Sequence[Bucket],
        activations: int,
        recorder: Recorder,
        letterbox: LetterboxKernel | None = None,
    ) -> None:
        self._contexts = contexts
        self._recorder = recorder
        self._buckets = buckets
        self._batches: dict[Bucket, BatchContext] = {}
        rows = buckets[-1].rows
        with ExitStack() as made:
            self._stream = made.enter_context(closing(device.stream()))
            self._done = made.enter_context(closing(device.event()))
            # A small engine may need no memory, but CUDA cannot allocate 0 bytes.
            self._activations = made.enter_context(closing(device.alloc(max(1, activations))))
            self._inputs, self._outputs = (
                [made.enter_context(closing(Buffer(device, t, rows))) for t in tensors]
                for tensors in (inputs, outputs)
            )
            self._images = None
            if letterbox is not None:
                images = ImageBuffer(device, letterbox, self._inputs, rows)
                self._images = made.enter_context(closing(images))
            made.callback(self._drain, *buckets)
            for buffer in self._inputs:
                buffer.clear(self._stream)
            for bucket in buckets:
                self._batches[bucket] = self._open(bucket)
            self._made = made.pop_all()

    def record(self) -> None:
        """Record the CUDA graphs of all batch sizes, if possible at the moment."""
        for batch in self._batches.values():
            batch.record()

    def run(self, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Compute a batch that fits the largest bucket; all arrays are [rows, ...]."""

        def send(bucket: Bucket) -> None:
            for buffer in self._inputs:
                buffer.send(feeds[buffer.tensor.name], self._stream)

        self._run(len(next(iter(feeds.values()))), send, outputs)

    def run_images(self, images: Sequence[PlacedImage], outputs: Mapping[str, Array]) -> None:
        """Letterbox and compute a batch with one image per row; otherwise like `run`."""
        staging = self._images
        assert staging is not None, "only sessions with a letterbox take images"

        def send(bucket: Bucket) -> None:
            staging.send(images, bucket.rows, self._stream)

        self._run(len(images), send, outputs)

    def _run(self, rows: int, send: Callable[[Bucket], None], outputs: Mapping[str, Array]) -> None:
        bucket = next(bucket for bucket in self._buckets if bucket.rows >= rows)
        done = False
        try:
            self._enqueue(bucket, rows, send)
            # Waiting for an event leaves the core to other threads; for a stream CUDA would spin.
            self._done.record(self._stream)
            self._done.synchronize()
            done = True
        finally:
            if not done:
                self._drain(bucket)
        for buffer in self._outputs:
            buffer.read(outputs[buffer.tensor.name])

    def _enqueue(self, bucket: Bucket, rows: int, send: Callable[[Bucket], None]) -> None:
        if bucket not in self._batches:
            with QUIET.synchronising():
                self._batches[bucket] = self._open(bucket)
        send(bucket)
        self._batches[bucket].enqueue()
        for buffer in self._outputs:
            buffer.fetch(rows, self._stream)

    def _open(self, bucket: Bucket) -> BatchContext:
        context = self._contexts.make(bucket, self._stream)
        context.set_device_memory(self._activations.address, self._activations.size)
        for buffer in (*self._inputs, *self._outputs):
            if not context.set_tensor_address(buffer.tensor.name, buffer.memory.address):
                raise InferenceFailed(
                    f"TensorRT rejected the buffer of tensor {buffer.tensor.name!r}; see the log"
                )
        return BatchContext(context, self._stream, self._recorder)

    def _drain(self, *buckets: Bucket) -> None:
        """Wait for enqueued work, and drop contexts.

        The next batch of their size creates new ones.
        """
        # The error was already reported, or its caller has gone.
        with suppress(BackendError):
            self._stream.synchronize()
        for bucket in buckets:
            if batch := self._batches.pop(bucket, None):
                with suppress(BackendError), QUIET.synchronising():
                    batch.close()

    def close(self) -> None:
        """Release everything."""
        self._made.close()
