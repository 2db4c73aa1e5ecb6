"""Runs an engine at several batch sizes. Each batch size has its own execution context."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from fovea_engines.backends.tensorrt.cuda.driver import Device
from fovea_engines.backends.tensorrt.cuda.quiet import QUIET
from fovea_engines.backends.tensorrt.cuda.resources import Graph, Stream
from fovea_engines.backends.tensorrt.tensors import Tensor
from fovea_engines.repository.options import Profile
from fovea_preprocess.errors import InferenceFailed, UnsupportedModel

log = logging.getLogger(__name__)

_TRIES = 2


@dataclass(frozen=True, slots=True)
class Bucket:
    """A batch size at which the engine runs.

    Attributes:
        rows: batch size.
        profile: index of the best optimization profile for this batch size.
    """

    rows: int
    profile: int


def read_profiles(engine: Any, inputs: Sequence[Tensor]) -> dict[int, Profile]:
    """Return the optimization profiles of an `ICudaEngine` that accept the shapes of the inputs.

    Returns:
        Index of each such profile -> its minimum, optimum and maximum batch size.

    Raises:
        UnsupportedModel: no profile has a batch size that all inputs accept.
    """
    profiles = {}
    for index in range(engine.num_optimization_profiles):
        shapes = [_shapes(engine, tensor, index) for tensor in inputs]
        fewest = max(least[0] for least, _, _ in shapes)
        best = max(best[0] for _, best, _ in shapes)
        most = min(greatest[0] for _, _, greatest in shapes)
        if fewest <= most and all(map(_takes, shapes, inputs)):
            profiles[index] = Profile(fewest, min(best, most), most)
    if not profiles:
        raise UnsupportedModel(
            "no optimization profile has a batch size that all inputs accept: build the engine "
            "again with equal batch sizes for all inputs"
        )
    return profiles


def _shapes(engine: Any, tensor: Tensor, profile: int) -> list[tuple[int, ...]]:
    """Return an input's minimum, optimum and maximum shape in a profile, the batch dimension first.

    An input without a batch dimension gets a first dimension of 1.
    """
    shape = engine.get_tensor_shape(tensor.name)
    dynamic = -1 in tuple(shape)
    shapes = engine.get_tensor_profile_shape(tensor.name, profile) if dynamic else [shape] * 3
    return [tuple(each) if tensor.batched else (1, *each) for each in shapes]


def _takes(shapes: Sequence[tuple[int, ...]], tensor: Tensor) -> bool:
    """Return whether a profile accepts an input's shape without the batch dimension."""
    least, _, greatest = shapes
    return all(
        low <= size <= high
        for low, size, high in zip(least[1:], tensor.row, greatest[1:], strict=True)
    )


def choose_buckets(profiles: Mapping[int, Profile], max_batch: int) -> tuple[Bucket, ...]:
    """Return the batch sizes at which a session runs an engine, in ascending order.

    The sizes are the powers of two and the batch sizes in the profiles. The largest size is the
    first one that is at least `max_batch`, or the largest size that a profile accepts. With these
    sizes, padding less than doubles a batch, and the number of execution contexts stays small. The
    session splits batches that exceed the largest size.
    """
    sizes = {size for p in profiles.values() for size in (p.min, p.opt, p.max)} | {max_batch}
    sizes |= {1 << power for power in range(max_batch.bit_length())}
    buckets: list[Bucket] = []
    for rows in sorted(sizes):
        suited = {index: p.opt for index, p in profiles.items() if p.min <= rows <= p.max}
        if suited:
            buckets.append(Bucket(rows, min(suited, key=lambda index: abs(suited[index] - rows))))
            if rows >= max_batch:
                break
    return tuple(buckets)


class Contexts:
    """Creates execution contexts of an engine. The caller provides the contexts' memory.

    So several contexts that run one after another can share memory.

    If `runtime_config` is None, the engine's default `IRuntimeConfig` is used.
    """

    def __init__(
        self, engine: Any, inputs: Sequence[Tensor], trt: Any, runtime_config: Any
    ) -> None:
        runtime_config = runtime_config or engine.create_runtime_config()
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        runtime_config.set_execution_context_allocation_strategy(strategy)
        self._engine = engine
        self._inputs = inputs
        self._runtime_config = runtime_config
        # This lock is needed, because TensorRT does not guarantee that two threads may create
        # contexts of one engine at the same time.
        self._creating = Lock()

    def make(self, bucket: Bucket, stream: Stream) -> Any:
        """Create an `IExecutionContext` for a batch size and a stream.

        The caller must set the context's memory and the addresses of its tensors.

        Raises:
            InferenceFailed: TensorRT rejected the batch size, or has too little memory for the
                context.
        """
        with self._creating:
            context = self._engine.create_execution_context(self._runtime_config)
        try:
            made = (
                context is not None
                and context.set_optimization_profile_async(bucket.profile, stream.handle)
                and all(context.set_input_shape(t.name, t.shape(bucket.rows)) for t in self._inputs)
            )
        except RuntimeError:  # the Python bindings raise this if a profile cannot be set
            made = False
        if not made:
            raise InferenceFailed(
                f"TensorRT could not create a context for batches of {bucket.rows}; see the log. "
                "If memory is short, build the engine with a smaller --max-batch"
            )
        return context

    def close(self) -> None:
        """Release the engine, even if other objects still reference this object."""
        self._engine = self._runtime_config = None


class Recorder:
    """Records CUDA graphs, and stops after recording has failed twice in a row for one batch size.

    A CUDA graph launches all kernels of a batch with one call. This saves much time for small
    models on fast GPUs.
    """

    def __init__(self, device: Device, *, wanted: bool) -> None:
        self._device = device
        self._wanted = wanted

    def record(self, stream: Stream, enqueue: Callable[[], None]) -> Graph | None:
        """Record the work that `enqueue` adds to a stream.

        Returns:
            The graph. If recording failed, or is not possible at the moment, None.

        Raises:
            InferenceFailed: recording failed, and running the work without a recording failed
                twice.
        """
        reason = ""
        for _ in range(_TRIES if self._wanted else 0):
            with QUIET.recording() as free:
                if not free:
                    return None
                try:
                    with self._device.capture(stream) as capture:
                        enqueue()
                    return capture.graph()
                except InferenceFailed as error:
                    # Keep only the error's text, because the exception references the execution
                    # context.
                    reason = str(error)
            _run_after_refusal(stream, enqueue)
        if reason:
            self._wanted = False
            log.warning(
                "this engine runs without CUDA graphs, so it launches each kernel separately: %s",
                reason,
            )
        return None


def _run_after_refusal(stream: Stream, enqueue: Callable[[], None]) -> None:
    """Run the work whose recording failed, to clear the error in TensorRT's CUDA runtime.

    The CUDA runtime keeps an error and reports it at its next call. No function resets the error
    directly, so the first run may fail, and then a second run must succeed.
    """
    with QUIET.synchronising():
        with suppress(InferenceFailed):
            enqueue()
            stream.synchronize()
            return
        enqueue()
        stream.synchronize()


class BatchContext:
    """Runs batches of one size. The addresses of the inputs and outputs are fixed.

    A CUDA graph depends on the state of the execution context from which it was recorded. So each
    batch size has its own execution context, which never changes its batch size or profile. Pass a
    context whose profile, shapes, addresses and memory are set. The constructor runs the context
    once. `record` records the CUDA graph; if `record` was not called or failed, `enqueue` tries to
    record it.
    """

    def __init__(self, context: Any, stream: Stream, recorder: Recorder) -> None:
        self._context = context
        self._stream = stream
        self._recorder = recorder
        self._graph: Graph | None = None
        # The first run loads kernels and allocates scratch memory. A CUDA graph cannot record these
        # steps.
        self._execute()
        stream.synchronize()

    def record(self) -> None:
        """Record the CUDA graph, unless it exists already; see `Recorder.record`."""
        if self._graph is None:
            self._graph = self._recorder.record(self._stream, self._execute)

    def enqueue(self) -> None:
        """Add the work for one batch to the stream, without waiting for it."""
        self.record()
        if self._graph is None:
            self._execute()
        else:
            self._graph.launch(self._stream)

    def _execute(self) -> None:
        if not self._context.execute_async_v3(self._stream.handle):
            raise InferenceFailed("TensorRT could not run this batch; see the log")

    def close(self) -> None:
        """Release the graph and the context.

        The stream must have finished all work that uses them.
        """
        # Release the context now, while the device is current. An exception may keep this object
        # alive, so its deletion may come too late.
        self._context = None
        if self._graph is not None:
            self._graph.close()
