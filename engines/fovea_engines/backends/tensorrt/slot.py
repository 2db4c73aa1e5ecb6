"""Runs one batch at a time on the GPU.

A slot has a stream, memory, and an execution context for each batch size.
"""

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
# Largest total size of a batch's images in bytes: 43 images in full HD. In larger batches, each
# image must be smaller.
_MAX_IMAGE_BYTES = 256 << 20


class _Staging:
    """A block of GPU memory, and page-locked host memory of the same size."""

    def __init__(self, device: Device, size: int) -> None:
        self._device = device
        with ExitStack() as made:
            self.memory = made.enter_context(closing(device.alloc(size)))
            self._pinned = made.enter_context(closing(device.pinned(size)))
            self._made = made.pop_all()

    def close(self) -> None:
        """Release the memory on the GPU and on the host."""
        self._made.close()


class Buffer(_Staging):
    """Memory of one input or output for a batch, on the GPU (`memory`) and on the host."""

    def __init__(self, device: Device, tensor: Tensor, rows: int) -> None:
        super().__init__(device, rows * tensor.row_bytes)
        self.tensor = tensor
        self._rows: Array = self._pinned.array.view(tensor.dtype).reshape(rows, *tensor.row)

    def clear(self, stream: Stream) -> None:
        """Add to a stream a copy of zeros into the whole GPU buffer.

        The engine also computes the rows after the end of a batch, so they must not be random
        bytes.
        """
        self._rows[...] = 0
        self._device.copy_in(self.memory, self._pinned, self._rows.nbytes, stream)

    def send(self, rows: Array, stream: Stream) -> None:
        """Copy rows into host memory, and add their copy to the GPU to a stream."""
        np.copyto(self._rows[: len(rows)], rows)
        self._device.copy_in(self.memory, self._pinned, rows.nbytes, stream)

    def fetch(self, rows: int, stream: Stream) -> None:
        """Add to a stream a copy of the first `rows` rows from the GPU to the host."""
        self._device.copy_out(self._pinned, self.memory, rows * self.tensor.row_bytes, stream)

    def read(self, rows: Array) -> None:
        """Copy the rows that `fetch` copied to the host into an array [rows, ...]."""
        np.copyto(rows, self._rows[: len(rows)])

    def close(self) -> None:
        """Release the memory on the GPU and on the host."""
        del self._rows
        super().close()


class ImageBuffer(_Staging):
    """Memory for images of any size, on the GPU and on the host.

    A kernel letterboxes the images into the rows of the engine's only input.

    The buffer does not close the kernel.

    Raises:
        InvalidModel: the engine has several inputs, or the kernel's rows differ from the input in
            shape or element type.
    """

    def __init__(
        self, device: Device, letterbox: LetterboxKernel, inputs: Sequence[Buffer], rows: int
    ) -> None:
        _check_rows(letterbox.spec, [buffer.tensor for buffer in inputs])
        super().__init__(device, staging_bytes(letterbox.spec, rows))
        self._letterbox = letterbox
        self._batch = inputs[0].memory

    def send(self, images: Sequence[PlacedImage], rows: int, stream: Stream) -> None:
        """Copy images into host memory, and add to a stream their copy to the GPU and the kernel.

        No image may exceed `most_image_bytes`. The kernel fills the rows after the last image with
        the padding colour.
        """
        size = self._letterbox.pack(images, rows, self._pinned)
        self._device.copy_in(self.memory, self._pinned, size, stream)
        self._letterbox(stream, self.memory, rows, self._batch)


def most_image_bytes(spec: PreprocessSpec, rows: int) -> int:
    """Return the largest size of an image in bytes, in a batch of `rows` images."""
    own = spec.height * spec.width * 3
    return max(own, min(_FULL_HD, _MAX_IMAGE_BYTES // rows))


def staging_bytes(spec: PreprocessSpec, rows: int) -> int:
    """Return the size of an `ImageBuffer` in bytes. The GPU and the host each need this memory."""
    return packed_size(rows, rows * most_image_bytes(spec, rows))


def _check_rows(spec: PreprocessSpec, inputs: Sequence[Tensor]) -> None:
    # This check prevents a kernel for larger rows from writing beyond the end of the GPU buffer.
    if [(i.row, i.dtype.name) for i in inputs] != [(spec.row_shape, spec.dtype)]:
        raise InvalidModel(
            f"the letterbox kernel writes images as {spec.dtype} {list(spec.row_shape)}, but the "
            "engine's input is different: build the engine again"
        )


def check_memory(device: Device, slots: int, activations: int, buffers: int, rows: int) -> None:
    """Check that the GPU has enough free memory for all slots. The device must be current.

    Args:
        device: the GPU.
        slots: number of slots.
        activations: working memory per slot in bytes.
        buffers: memory per slot in bytes for inputs, outputs, and images before letterboxing.
        rows: largest batch size.

    Raises:
        OutOfMemory: the free memory is too small.
    """
    needed = slots * (activations + buffers)
    free, total = device.memory()
    if needed <= free:
        return
    ways = [f"build with a --max-batch below {rows}"] if rows > 1 else []
    ways += ["stop other programs on the GPU"]
    raise OutOfMemory(
        f"the engine needs {megabytes(needed)} besides its weights, but {device.name} has only "
        f"{megabytes(free)} of {megabytes(total)} free: {counted(slots, 'slot')} of "
        f"{megabytes(activations)} for activations, and {megabytes(buffers)} for inputs and "
        f"outputs. To reduce it: {', '.join(ways)}"
    )


class Slot:
    """Runs one batch at a time. Batches of different slots overlap.

    Each bucket (batch size) has its own execution context. All contexts of a slot share its memory,
    because only one context runs at a time. `buckets` are in ascending order, and `activations` is
    the size of the working memory in bytes. The device must be current in every call. The slot does
    not close the letterbox kernel.
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
            # A small engine may need no working memory, but CUDA cannot allocate 0 bytes.
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
        """Record the CUDA graph of each batch size, if a recording is possible at the moment."""
        for batch in self._batches.values():
            batch.record()

    def run(self, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Compute a batch that fits the largest bucket.

        Args:
            feeds: name of each input -> its array [rows, ...].
            outputs: name of each output -> the array [rows, ...] that this method fills.
        """

        def send(bucket: Bucket) -> None:
            for buffer in self._inputs:
                buffer.send(feeds[buffer.tensor.name], self._stream)

        self._run(len(next(iter(feeds.values()))), send, outputs)

    def run_images(self, images: Sequence[PlacedImage], outputs: Mapping[str, Array]) -> None:
        """Letterbox images, and compute a batch with one image per row; otherwise like `run`."""
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
            # Wait for an event and not for the stream: CUDA sleeps while it waits for this event,
            # but it would spin while it waits for a stream.
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
        """Wait for the work in the stream, and close the execution contexts of some buckets.

        The next batch of such a size creates a new context.
        """
        # Ignore an error of the work: it was already reported, or the caller no longer waits for
        # it.
        with suppress(BackendError):
            self._stream.synchronize()
        for bucket in buckets:
            if batch := self._batches.pop(bucket, None):
                with suppress(BackendError), QUIET.synchronising():
                    batch.close()

    def close(self) -> None:
        """Release the contexts, the memory and the stream."""
        self._made.close()
