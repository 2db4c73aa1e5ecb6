"""Runs one batch on the GPU: a stream, its memory, and a lane for each batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress

from fovea_engines.backends.cuda.driver import Device, megabytes
from fovea_engines.backends.cuda.letterbox import LetterboxKernel
from fovea_engines.backends.tensorrt.buffers import Buffer, ImageBuffer
from fovea_engines.backends.tensorrt.lanes import Bucket, Contexts, Lane, Recorder
from fovea_engines.backends.tensorrt.tensors import Tensor
from fovea_engines.plural import counted
from fovea_engines.session import Array
from fovea_preprocess.errors import BackendError, OutOfMemory
from fovea_preprocess.placed import PlacedImage


def check_memory(device: Device, slots: int, activations: int, buffers: int, rows: int) -> None:
    """Compare the memory of all slots with the free memory; the device is current.

    `activations` are bytes of a slot to compute in, `buffers` those for inputs and outputs, and for
    images that become inputs; `rows` are those of the largest batch.
    """
    needed = slots * (activations + buffers)
    free, total = device.memory()
    if needed <= free:
        return
    ways = [f"a build with a --max-batch below {rows}"] if rows > 1 else []
    ways += ["stopping what else uses the GPU"]
    raise OutOfMemory(
        f"the engine needs {megabytes(needed)} beside its weights, and {device.name} has "
        f"{megabytes(free)} of {megabytes(total)} free: {counted(slots, 'slot')} of "
        f"{megabytes(activations)} to compute in and {megabytes(buffers)} for inputs and outputs. "
        f"What helps: {', '.join(ways)}"
    )


class Slot:
    """Runs one batch at a time; the batches of different slots overlap.

    Its lanes, one for each bucket (smallest first), share all memory, as only one of them runs at
    any time. The device is current in the thread of every call. `activations` are the bytes that
    the engine computes in. The letterbox is not closed with the slot.
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
        self._lanes: dict[Bucket, Lane] = {}
        rows = buckets[-1].rows
        with ExitStack() as made:
            self._stream = made.enter_context(closing(device.stream()))
            self._done = made.enter_context(closing(device.event()))
            # A small engine may need none, but CUDA cannot allocate 0 bytes.
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
                self._lanes[bucket] = self._open(bucket)
            self._made = made.pop_all()

    def run(self, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Compute a batch that fits the largest bucket; all arrays are [rows, ...]."""

        def send(bucket: Bucket) -> None:
            for buffer in self._inputs:
                buffer.send(feeds[buffer.tensor.name], self._stream)

        self._run(len(next(iter(feeds.values()))), send, outputs)

    def run_images(self, images: Sequence[PlacedImage], outputs: Mapping[str, Array]) -> None:
        """Letterbox and compute a batch, with one image per row; as `run` in all else."""
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
            # Waiting for an event leaves the core to others; CUDA would spin for a stream.
            self._done.record(self._stream)
            self._done.synchronize()
            done = True
        finally:
            if not done:
                self._drain(bucket)
        for buffer in self._outputs:
            buffer.read(outputs[buffer.tensor.name])

    def _enqueue(self, bucket: Bucket, rows: int, send: Callable[[Bucket], None]) -> None:
        if bucket not in self._lanes:
            self._lanes[bucket] = self._open(bucket)
        send(bucket)
        self._lanes[bucket].enqueue()
        for buffer in self._outputs:
            buffer.fetch(rows, self._stream)

    def _open(self, bucket: Bucket) -> Lane:
        context = self._contexts.make(bucket, self._stream)
        context.set_device_memory(self._activations.address, self._activations.size)
        for buffer in (*self._inputs, *self._outputs):
            context.set_tensor_address(buffer.tensor.name, buffer.memory.address)
        return Lane(context, self._stream, self._recorder)

    def _drain(self, *buckets: Bucket) -> None:
        """Wait for enqueued work, and drop lanes: the next batch of that size creates another."""
        # The failure was already reported, or its caller is gone.
        with suppress(BackendError):
            self._stream.synchronize()
        for bucket in buckets:
            if lane := self._lanes.pop(bucket, None):
                with suppress(BackendError):
                    lane.close()

    def close(self) -> None:
        """Release everything."""
        self._made.close()
