"""Runs an engine at a few batch sizes, each in an execution context of its own."""

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
    """A batch size that the engine is run at, and the index of the profile that suits it best."""

    rows: int
    profile: int


def read_profiles(engine: Any, inputs: Sequence[Tensor]) -> dict[int, Profile]:
    """Return the optimization profiles of an `ICudaEngine` that take these inputs, by index."""
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
    """Return the minimum, optimum and maximum shape, rows first: 1 without a batch dimension."""
    shape = engine.get_tensor_shape(tensor.name)
    dynamic = -1 in tuple(shape)
    shapes = engine.get_tensor_profile_shape(tensor.name, profile) if dynamic else [shape] * 3
    return [tuple(each) if tensor.batched else (1, *each) for each in shapes]


def _takes(shapes: Sequence[tuple[int, ...]], tensor: Tensor) -> bool:
    """Return True if the row of a tensor is between a profile's minimum and maximum shape."""
    least, _, greatest = shapes
    return all(
        low <= size <= high
        for low, size, high in zip(least[1:], tensor.row, greatest[1:], strict=True)
    )


def choose_buckets(profiles: Mapping[int, Profile], max_batch: int) -> tuple[Bucket, ...]:
    """Return powers of two, and the sizes that profiles name, up to the largest batch, in order.

    So padding less than doubles a batch, and there are few sizes: each needs a context. Larger
    batches than every bucket are split.
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
    """Creates execution contexts that compute in memory of the caller, so that they can share it.

    Without an `IRuntimeConfig` of the engine, it uses the defaults.
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
        # TensorRT does not promise that two threads may create contexts of an engine at once.
        self._creating = Lock()

    def make(self, bucket: Bucket, stream: Stream) -> Any:
        """Create an `IExecutionContext` that will run in a stream; without addresses and memory."""
        with self._creating:
            context = self._engine.create_execution_context(self._runtime_config)
        try:
            made = (
                context is not None
                and context.set_optimization_profile_async(bucket.profile, stream.handle)
                and all(context.set_input_shape(t.name, t.shape(bucket.rows)) for t in self._inputs)
            )
        except RuntimeError:  # so the bindings say that a profile cannot be set
            made = False
        if not made:
            raise InferenceFailed(
                f"TensorRT could not create a context for batches of {bucket.rows}; see the log. "
                "If memory is short, build the engine with a smaller --max-batch"
            )
        return context

    def close(self) -> None:
        """Let go of the engine, even if this is referenced."""
        self._engine = self._runtime_config = None


class Recorder:
    """Records CUDA graphs; once the same one was refused twice, never again.

    A graph saves the launch of every single kernel, which matters for small models on fast GPUs.
    """

    def __init__(self, device: Device, *, wanted: bool) -> None:
        self._device = device
        self._wanted = wanted

    def record(self, stream: Stream, enqueue: Callable[[], None]) -> Graph | None:
        """Record the work of `enqueue` in a stream; None where that fails, or cannot be done now.

        Raises:
            InferenceFailed: after a refusal the work cannot be run either.
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
                    # The text is kept: the error itself references the context.
                    reason = str(error)
            _run_after_refusal(stream, enqueue)
        if reason:
            self._wanted = False
            log.warning("this engine runs without CUDA graphs, kernel by kernel: %s", reason)
        return None


def _run_after_refusal(stream: Stream, enqueue: Callable[[], None]) -> None:
    """Run work whose recording was refused, so that TensorRT's CUDA runtime reports it no more.

    That keeps the error for whichever of its calls comes next, and cannot be reached from here.
    """
    with QUIET.synchronising():
        with suppress(InferenceFailed):
            enqueue()
            stream.synchronize()
            return
        enqueue()
        stream.synchronize()


class BatchContext:
    """Runs batches of one size from fixed addresses to fixed addresses.

    A graph is bound to the state of the context it was recorded from, so there is one context per
    size, and none is switched between sizes and profiles. The context comes with profile, shapes,
    addresses and memory set, and runs once to begin with. Its graph is recorded by `record`, or by
    `enqueue` where that was not possible yet.
    """

    def __init__(self, context: Any, stream: Stream, recorder: Recorder) -> None:
        self._context = context
        self._stream = stream
        self._recorder = recorder
        self._graph: Graph | None = None
        # The first run loads kernels and sizes scratch memory, which cannot be recorded.
        self._execute()
        stream.synchronize()

    def record(self) -> None:
        """Record the graph, unless it is there; see `Recorder.record`."""
        if self._graph is None:
            self._graph = self._recorder.record(self._stream, self._execute)

    def enqueue(self) -> None:
        """Enqueue one batch."""
        self.record()
        if self._graph is None:
            self._execute()
        else:
            self._graph.launch(self._stream)

    def _execute(self) -> None:
        if not self._context.execute_async_v3(self._stream.handle):
            raise InferenceFailed("TensorRT could not run this batch; see the log")

    def close(self) -> None:
        """Release graph and context; the stream must have finished with them."""
        # The context is released while the device is current: an error may still reference this.
        self._context = None
        if self._graph is not None:
            self._graph.close()
