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
    """A batch size at which the engine runs, and the index of its best optimization profile."""

    rows: int
    profile: int


def read_profiles(engine: Any, inputs: Sequence[Tensor]) -> dict[int, Profile]:
    """Return the optimization profiles of an `ICudaEngine` that accept these inputs, by index.

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
    """Return the minimum, optimum and maximum shape with the batch dimension first.

    An input without a batch dimension gets a first dimension of 1.
    """
    shape = engine.get_tensor_shape(tensor.name)
    dynamic = -1 in tuple(shape)
    shapes = engine.get_tensor_profile_shape(tensor.name, profile) if dynamic else [shape] * 3
    return [tuple(each) if tensor.batched else (1, *each) for each in shapes]


def _takes(shapes: Sequence[tuple[int, ...]], tensor: Tensor) -> bool:
    """Return True if the shape of a row is within the minimum and maximum of a profile."""
    least, _, greatest = shapes
    return all(
        low <= size <= high
        for low, size, high in zip(least[1:], tensor.row, greatest[1:], strict=True)
    )


def choose_buckets(profiles: Mapping[int, Profile], max_batch: int) -> tuple[Bucket, ...]:
    """Return powers of two and the batch sizes of profiles, up to the largest batch, ascending.

    With these sizes, padding less than doubles a batch, and the number of contexts stays small. The
    session splits batches that exceed the largest bucket.
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
    """Creates execution contexts that use memory of the caller, so several contexts can share it.

    Without a `runtime_config`, an engine's default `IRuntimeConfig` is used.
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
        # TensorRT does not guarantee that two threads may create contexts of one engine at the same
        # time.
        self._creating = Lock()

    def make(self, bucket: Bucket, stream: Stream) -> Any:
        """Create an `IExecutionContext` for a batch size and stream, without addresses and memory.

        Raises:
            InferenceFailed: TensorRT rejected the batch size, or has too little memory.
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
        """Release the engine, even if this object is still referenced."""
        self._engine = self._runtime_config = None


class Recorder:
    """Records CUDA graphs, until recording has failed twice in a row for one batch size.

    A graph saves the launch of each single kernel, which matters for small models on fast GPUs.
    """

    def __init__(self, device: Device, *, wanted: bool) -> None:
        self._device = device
        self._wanted = wanted

    def record(self, stream: Stream, enqueue: Callable[[], None]) -> Graph | None:
        """Record the work that `enqueue` adds to a stream.

        Returns:
            The graph; None if recording failed, or is not possible at the moment.

        Raises:
            InferenceFailed: recording failed, and afterwards the work itself failed too.
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
                    # Only the text is kept, because the exception references the context.
                    reason = str(error)
            _run_after_refusal(stream, enqueue)
        if reason:
            self._wanted = False
            log.warning("this engine runs without CUDA graphs, kernel by kernel: %s", reason)
        return None


def _run_after_refusal(stream: Stream, enqueue: Callable[[], None]) -> None:
    """Run work whose recording failed, to clear the error in TensorRT's CUDA runtime.

    The CUDA runtime keeps the error and reports it at its next call. This code cannot reset it
    directly.
    """
    with QUIET.synchronising():
        with suppress(InferenceFailed):
            enqueue()
            stream.synchronize()
            return
        enqueue()
        stream.synchronize()


class BatchContext:
    """Runs batches of one size, with fixed addresses of inputs and outputs.

    A graph is bound to the state of the context that recorded it. So each batch size has its own
    context, which never switches its size or profile. Pass a context with its profile, shapes,
    addresses and memory set. The constructor runs it once. `record` records its graph, or else
    `enqueue` does so later.
    """

    def __init__(self, context: Any, stream: Stream, recorder: Recorder) -> None:
        self._context = context
        self._stream = stream
        self._recorder = recorder
        self._graph: Graph | None = None
        # The first run loads kernels and sizes scratch memory. These steps cannot be recorded.
        self._execute()
        stream.synchronize()

    def record(self) -> None:
        """Record the graph, unless it exists already; see `Recorder.record`."""
        if self._graph is None:
            self._graph = self._recorder.record(self._stream, self._execute)

    def enqueue(self) -> None:
        """Enqueue one batch on the stream."""
        self.record()
        if self._graph is None:
            self._execute()
        else:
            self._graph.launch(self._stream)

    def _execute(self) -> None:
        if not self._context.execute_async_v3(self._stream.handle):
            raise InferenceFailed("TensorRT could not run this batch; see the log")

    def close(self) -> None:
        """Release graph and context. The stream must have finished its work with them."""
        # The context is released here, while the device is current: an exception may still
        # reference this object.
        self._context = None
        if self._graph is not None:
            self._graph.close()
