"""Runs a model on CPU cores. The model is loaded twice, with different numbers of threads."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from typing import Protocol, TypeVar

from fovea_engines.backends.feeds import check_feeds
from fovea_engines.session import Array, Closing, TensorSpec
from fovea_preprocess.errors import InferenceFailed

# Weight of the latest call (0 to 1) in the exponentially smoothed duration of a layout's calls.
_SMOOTHING = 0.25
# The wide layout counts as slow if its smoothed duration exceeds its fastest smoothed duration by
# this factor.
_SLOW = 1.2
# Limits for the seconds between two trials of the other layout. The wait after a slow trial makes
# trials cost at most 1/50 (`_COST`) of all time. But the wait is at least `_SOONEST_S`. It is at
# most `_SOON_S`, unless trials would then cost more than 1/25 (`_MAX_COST`) of all time.
_SOONEST_S, _SOON_S = 0.25, 0.8
_COST, _MAX_COST = 0.02, 0.04
# Number of calls in a trial. The first call after a change of the layout is not representative:
# caches are cold, and memory must be allocated. But a trial of the wide layout ends after one call
# if this call takes `_CLEAR` times as long as a narrow call and `_CLEAR_S` seconds longer. Then the
# wide layout is also slower with warm caches: on idle cores a wide call takes about half as long as
# a narrow call.
_TRIAL_CALLS = 2
_CLEAR, _CLEAR_S = 1.25, 0.02

# Number of consecutive calls in one layout after which the other layout releases its memory.
_REST_AFTER = 16
# Largest number of input shapes for which a session stores measurements of the layouts.
_MAX_SHAPES = 64


@dataclass(slots=True)
class LatencyLayout:
    """Chooses the faster thread layout of single calls for one set of input shapes.

    The wide layout uses all cores for a call, and the narrow layout uses only some of them (see
    `CpuSession`).

    The threads of a wide call wait for each other at the end of each layer. So a core that another
    process uses slows down all threads. While the wide layout is in use, the narrow layout has one
    trial at the beginning, and further trials only after the wide layout has become slow. Between
    trials the narrow layout needs no memory. While the narrow layout is in use, the wide layout has
    a trial about every 0.25 to 0.8 s, or less often if the trials would cost more than 1/25 of all
    time.

    Several threads use an object without a lock and may overwrite each other's measurements. The
    next call corrects this.
    """

    wide: bool = True
    _seconds: dict[bool, float] = field(default_factory=lambda: {True: inf, False: inf})
    _fastest_s: float = inf
    _trial_at: float = inf
    _calls_left: int = 0

    def next(self, now: float) -> bool:
        """Return whether the next call should use the wide layout.

        `now` is the monotonic time in seconds.
        """
        if not self._calls_left and now >= self._trial_at and self._is_doubtful():
            self._calls_left = _TRIAL_CALLS
        return self.wide != bool(self._calls_left)

    def _is_doubtful(self) -> bool:
        narrow_s = self._seconds[False]
        return not self.wide or narrow_s == inf or self._seconds[True] > _SLOW * self._fastest_s

    def learn(self, wide: bool, seconds: float, now: float) -> None:
        """Record the duration of a call.

        Args:
            wide: layout of the call.
            seconds: duration of the call in seconds.
            now: monotonic time at the end of the call in seconds.
        """
        if self._trial_at == inf:
            self._trial_at = now + _SOONEST_S
        if wide != self.wide:
            self._calls_left = max(0, self._calls_left - 1)
            narrow_s = self._seconds[False]
            is_slower = wide and seconds > max(_CLEAR * narrow_s, narrow_s + _CLEAR_S)
            if is_slower or not self._calls_left:
                self._judge(wide, seconds, now)
            return
        known = self._seconds[wide]
        self._seconds[wide] = seconds if known == inf else known + _SMOOTHING * (seconds - known)
        if wide:
            self._fastest_s = min(self._fastest_s, self._seconds[wide])

    def _judge(self, wide: bool, seconds: float, now: float) -> None:
        calls, self._calls_left = _TRIAL_CALLS - self._calls_left, 0
        lost_s = calls * (seconds - self._seconds[self.wide])
        self._trial_at = now + max(_SOONEST_S, min(lost_s / _COST, _SOON_S), lost_s / _MAX_COST)
        self._seconds[wide] = seconds
        if lost_s < 0:
            self.wide = wide


class Layout(Protocol):
    """A loaded model with a fixed number of threads per call. Several calls may run in parallel."""

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch.

        Args:
            feeds: name of each input -> its array.

        Returns:
            Name of each output -> its array.
        """
        ...

    def rest(self) -> None:
        """Release the working memory of the layout, unless a call is in progress.

        The next call allocates it again.
        """
        ...


L = TypeVar("L", bound=Layout)

# Parameters of `mallopt`, from <malloc.h> of glibc.
M_MMAP_THRESHOLD = -3
M_TRIM_THRESHOLD = -1
M_ARENA_MAX = -8


class CpuSession(Closing):
    """A `Session` that holds its model in two thread layouts: *wide* and *narrow*.

    The wide layout gives all cores to one call, so a single call usually has the lowest latency.
    The narrow layout gives each of several parallel calls its own cores, usually one core. This has
    the highest throughput under load, because no core waits for another core at the end of a layer.
    A single call also uses the narrow layout if other processes make the wide layout slower.

    `optional_inputs` are inputs with default values in the model. A call may leave them out.
    """

    offloads = False

    def __init__(
        self,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        *,
        wide: Layout,
        narrow: Layout,
        max_batch: int,
        concurrency: int,
        steady: bool,
        optional_inputs: tuple[TensorSpec, ...] = (),
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.optional_inputs = optional_inputs
        self.max_batch = fixed_rows(inputs, max_batch)
        self.concurrency = concurrency
        self.steady = steady
        self._layouts: tuple[Layout, Layout] | None = (wide, narrow)
        # If the duration of a call depends on its values, durations cannot be compared between the
        # layouts.
        self._has_choice = steady and wide is not narrow
        self._lone: dict[object, LatencyLayout] = {}
        self._wide_streak = 0

    def infer(self, feeds: Mapping[str, Array], *, alone: bool = True) -> dict[str, Array]:
        """Run one batch; see `Session.infer`."""
        # This local variable keeps the layouts alive if another thread calls `close` during the
        # call.
        layouts = self._layouts
        if layouts is None:
            raise InferenceFailed("the session is closed; open the engine again")
        check_feeds(self.inputs, self.max_batch, feeds, self.optional_inputs)
        if not (alone and self._has_choice):
            return self._run(layouts, alone, feeds)
        lone = self._lone_call(feeds)
        began = time.monotonic()
        wide = lone.next(began)
        outputs = self._run(layouts, wide, feeds)
        ended = time.monotonic()
        lone.learn(wide, ended - began, ended)
        return outputs

    def _lone_call(self, feeds: Mapping[str, Array]) -> LatencyLayout:
        # Calls with different input shapes have different durations, so each combination of shapes
        # has its own measurements.
        shapes = tuple(array.shape for array in feeds.values())
        lone = self._lone.get(shapes)
        if lone is None:
            if len(self._lone) == _MAX_SHAPES:
                self._lone = {}
            lone = self._lone[shapes] = LatencyLayout()
        return lone

    def _run(
        self, layouts: tuple[Layout, Layout], wide: bool, feeds: Mapping[str, Array]
    ) -> dict[str, Array]:
        chosen, other = layouts if wide else layouts[::-1]
        self._rest_if_unused(other, wide)
        return chosen(feeds)

    def _rest_if_unused(self, other: Layout, wide: bool) -> None:
        # A positive value counts consecutive wide calls, a negative value consecutive narrow calls.
        # Several threads may overwrite the count. Then a layout releases its memory a few calls
        # later.
        streak = self._wide_streak
        if wide:
            self._wide_streak = max(streak, 0) + 1
        else:
            self._wide_streak = min(streak, 0) - 1
        if abs(self._wide_streak) == _REST_AFTER:
            other.rest()

    def close(self) -> None:
        """Release both layouts. A call in progress keeps them until it ends.

        A second call has no effect.
        """
        self._layouts = None


def fixed_rows(inputs: tuple[TensorSpec, ...], max_batch: int) -> int:
    """Return the fixed batch size of the model, or `max_batch` if the batch size is dynamic."""
    first = {spec.shape[0] for spec in inputs if spec.shape}
    return first.pop() if max_batch and len(first) == 1 and -1 not in first else max_batch


def load_layouts(load: Callable[[int], L], cores: int, streams: int) -> tuple[L, L]:
    """Load the wide and the narrow layout in parallel.

    Args:
        load: function that loads the model with a number of threads per call.
        cores: number of CPU cores. A wide call uses all of them.
        streams: number of parallel calls that share the cores in the narrow layout.

    Returns:
        The wide and the narrow layout. They are the same object if a narrow call also uses all
        cores.
    """
    libc = ctypes.CDLL(None)
    # glibc returns freed blocks above a threshold to the system. By default, it raises the
    # threshold after the first free of a large block, and then keeps memory that was used for
    # loading: 30 of 220 MB for yolov8n in OpenVINO. An explicit threshold stays constant.
    libc.mallopt(M_MMAP_THRESHOLD, 2 << 20)
    # By default, glibc creates a heap for nearly every thread, up to 8 heaps per core. For yolov8n,
    # these heaps take 5 MB.
    libc.mallopt(M_ARENA_MAX, cores)
    width = cores // streams
    try:
        if width == cores:
            only = load(cores)
            return only, only
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="load-layout") as pool:
            wide, narrow = pool.map(load, (cores, width))
    finally:
        # After loading, glibc keeps blocks of up to 8 MiB, because each call allocates tensors of
        # the same sizes. If glibc returned tensors of 5 MB to the system after each call, page
        # faults would cost 4 ms per call. Larger blocks are returned, so the process does not keep
        # memory after a burst of large requests.
        libc.mallopt(M_MMAP_THRESHOLD, 8 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, 32 << 20)
    return wide, narrow
