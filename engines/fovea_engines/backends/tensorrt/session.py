"""Runs a loaded TensorRT engine. Several batches run in parallel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.backends.feeds import check_feeds
from fovea_engines.backends.tensorrt.batch_context import (
    Bucket,
    Contexts,
    Recorder,
    choose_buckets,
    read_profiles,
)
from fovea_engines.backends.tensorrt.cuda.driver import Device
from fovea_engines.backends.tensorrt.cuda.letterbox import LetterboxKernel
from fovea_engines.backends.tensorrt.cuda.quiet import QUIET
from fovea_engines.backends.tensorrt.cuda.resources import let_go
from fovea_engines.backends.tensorrt.slot import (
    Slot,
    check_memory,
    most_image_bytes,
    staging_bytes,
)
from fovea_engines.backends.tensorrt.tensors import Tensor, read_inputs, read_outputs
from fovea_engines.session import Array, Closing
from fovea_preprocess.errors import DeviceLost, InferenceFailed
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.preprocessor import PlacedImage, Placer

# Default number of parallel batches. One batch is copied while the other is computed; further
# batches would only wait for the GPU.
SLOTS = 2


class TensorRTSession(Closing):
    """A `Session` with a pool of slots. Each `Slot` runs one batch at a time.

    A batch is padded to the next size of the engine's buckets (see `choose_buckets`). A batch that
    exceeds the largest bucket is split. The constructor allocates all GPU memory. If it fails, it
    frees the memory again.

    Args:
        engine: the loaded `ICudaEngine`. The session releases it.
        device: the GPU on which the engine was loaded. The session closes it.
        trt: Python module of the engine's TensorRT.
        max_batch: largest batch size of a call; 0 if the model has no batch dimension.
        slots: largest number of parallel batches.
        runtime_config: `IRuntimeConfig` of the engine; None means TensorRT's defaults.
        runtime_cache: `IRuntimeCache` of `runtime_config`, or None. The session releases it.
        graphs: True to record a CUDA graph for each bucket. It must be False if `runtime_config`
            makes TensorRT for RTX record CUDA graphs itself.
        letterbox: letterbox kernel for `TensorRTImageSession`; otherwise None. The session closes
            it.
    """

    # The duration of a call varies, because a call waits for a slot and for the GPU.
    steady = False
    offloads = True

    def __init__(
        self,
        engine: Any,
        device: Device,
        trt: Any,
        *,
        max_batch: int,
        slots: int = SLOTS,
        runtime_config: Any = None,
        runtime_cache: Any = None,
        graphs: bool = True,
        letterbox: LetterboxKernel | None = None,
    ) -> None:
        self.max_batch = max_batch
        self.concurrency = slots
        self._device = device
        self._runtime_cache = runtime_cache
        self._free: SimpleQueue[Slot | None] = SimpleQueue()
        self._closed = False
        self._closing = threading.Lock()
        with device.current(), ExitStack() as made:
            if letterbox is not None:
                made.enter_context(closing(letterbox))
            with QUIET.synchronising():
                inputs = read_inputs(engine, batched=max_batch > 0)
                buckets = choose_buckets(read_profiles(engine, inputs), max(1, max_batch))
                self._largest = buckets[-1].rows
                images = 0 if letterbox is None else staging_bytes(letterbox.spec, self._largest)
                contexts = Contexts(engine, inputs, trt, runtime_config)
                made.callback(contexts.close)
                outputs = _outputs(engine, device, contexts, buckets[-1], batched=max_batch > 0)
                activations = engine.device_memory_size_v2
                buffers = self._largest * sum(t.row_bytes for t in (*inputs, *outputs)) + images
                check_memory(device, slots, activations, buffers, self._largest)
                recorder = Recorder(device, wanted=graphs)
                pool = []
                for _ in range(slots):
                    slot = Slot(
                        device,
                        contexts,
                        inputs,
                        outputs,
                        buckets,
                        activations,
                        recorder,
                        letterbox,
                    )
                    pool.append(made.enter_context(closing(slot)))
            for slot in pool:
                slot.record()
                self._free.put(slot)
            self._made = made.pop_all()
        self._outputs = outputs
        self.inputs = tuple(tensor.spec for tensor in inputs)
        self.outputs = tuple(tensor.spec for tensor in outputs)

    def infer(self, feeds: Mapping[str, Array], *, alone: bool = True) -> dict[str, Array]:
        """Run one batch; see `Session.infer`. `alone` has no effect on a GPU."""
        if self._closed:
            raise _closed_error()
        check_feeds(self.inputs, self.max_batch, feeds)
        with self._slot() as slot:
            if self.max_batch:
                return self._infer(slot, feeds)
            outputs = self._infer(slot, {name: array[None] for name, array in feeds.items()})
            return {name: array.reshape(array.shape[1:]) for name, array in outputs.items()}

    @contextmanager
    def _slot(self) -> Iterator[Slot]:
        """Wait for a free slot, and make the device current while the slot is in use."""
        slot = self._free.get()
        try:
            if slot is None:
                raise _closed_error()
            with self._device.current():
                try:
                    yield slot
                except InferenceFailed as error:
                    with QUIET.synchronising():
                        let_go(error)
                    self._check_device(error)
                    raise
        finally:
            self._free.put(slot)

    def _check_device(self, cause: InferenceFailed) -> None:
        """Raise `DeviceLost` if the GPU has crashed.

        After a crash, every CUDA call fails. So the method makes a harmless call.
        """
        try:
            self._device.memory()
        except InferenceFailed:
            raise DeviceLost(
                f"{self._device.name} no longer responds ({cause}): restart the server"
            ) from cause

    def _infer(self, slot: Slot, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return self._run_parts(
            len(next(iter(feeds.values()))),
            lambda part, outputs: slot.run({n: a[part] for n, a in feeds.items()}, outputs),
        )

    def _run_parts(
        self, rows: int, run: Callable[[slice, Mapping[str, Array]], None]
    ) -> dict[str, Array]:
        """Split a batch into parts that fit the largest bucket, and return all outputs.

        `run` takes the rows of a part, and the output arrays that it fills.
        """
        outputs = {t.name: np.empty((rows, *t.row), t.dtype) for t in self._outputs}
        for start in range(0, rows, self._largest):
            part = slice(start, start + self._largest)
            run(part, {name: array[part] for name, array in outputs.items()})
        return outputs

    def close(self) -> None:
        """Wait until the calls in progress have ended, and release all resources.

        A second call has no effect.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            for _ in range(self.concurrency):
                self._free.get()
            # Callers that still wait for a slot receive None and raise an error. Each one puts None
            # back for the next caller.
            self._free.put(None)
            with closing(self._device), self._device.current(), QUIET.synchronising():
                self._made.close()
                self._runtime_cache = None


def _outputs(
    engine: Any, device: Device, contexts: Contexts, bucket: Bucket, *, batched: bool
) -> tuple[Tensor, ...]:
    """Return the outputs of an engine, with their shapes for the batch size of a bucket.

    An execution context reports these shapes after the input shapes are set, so a context is
    created for this.
    """
    with closing(device.stream()) as stream:
        context = contexts.make(bucket, stream)
        stream.synchronize()
        return read_outputs(engine, context, bucket.rows, batched=batched)


def _closed_error() -> InferenceFailed:
    return InferenceFailed("the session is closed; open the engine again")


class TensorRTImageSession(TensorRTSession):
    """An `ImageSession` that copies images unchanged to the GPU, and letterboxes them there.

    The session closes the letterbox kernel, also if the constructor fails.
    """

    def __init__(
        self, engine: Any, device: Device, trt: Any, letterbox: LetterboxKernel, **options: Any
    ) -> None:
        super().__init__(engine, device, trt, letterbox=letterbox, **options)
        self._place = Placer(letterbox.spec, most_image_bytes(letterbox.spec, self._largest))

    def place(self, pixels: NDArray[np.uint8]) -> tuple[PlacedImage, LetterboxMap]:
        """Prepare an image; see `ImageSession.place`."""
        return self._place(pixels)

    def infer_images(self, images: Sequence[PlacedImage]) -> dict[str, Array]:
        """Run one batch; see `ImageSession.infer_images`."""
        if not 1 <= len(images) <= self.max_batch:
            raise InferenceFailed(
                f"the batch has {len(images)} images; it must have from 1 to "
                f"{self.max_batch}: split it"
            )
        with self._slot() as slot:
            return self._run_parts(
                len(images), lambda part, outputs: slot.run_images(images[part], outputs)
            )
