"""Runs a model on CPU cores. The model is loaded in two thread layouts."""

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

# Weight of the latest call in the smoothed time of a layout.
_SMOOTHING = 0.25
# The wide layout counts as slow if its time exceeds its fastest time by this factor.
_SLOW = 1.2
# Seconds between two trials of the other layout. The wait is chosen so that trials cost at most
# 1/50 of the time. It is at least 0.25 s, and at most 0.8 s unless the trials would then cost more
# than 1/25 of the time.
_SOONEST_S, _SOON_S = 0.25, 0.8
_COST, _MAX_COST = 0.02, 0.04
# Number of calls of a trial. The first call after a change is not representative: caches are cold,
# and memory must be allocated. But if a first wide call takes `_CLEAR` times as long as a narrow
# call, and `_CLEAR_S` seconds longer, wide is also slower when warm. On idle cores a wide call
# takes about half the time of a narrow one.
_TRIAL_CALLS = 2
_CLEAR, _CLEAR_S = 1.25, 0.02

# Number of calls in a row in one layout after which the other layout releases its memory.
_REST_AFTER = 16
# Largest number of input shapes for which the faster layout is remembered.
_MAX_SHAPES = 64


@dataclass(slots=True)
class LatencyLayout:
    """Chooses the thread layout of single calls for one set of input shapes: wide or narrow.

    The threads of a wide call wait for each other at the end of each layer, so one core that
    another process uses slows all of them. Narrow has one trial at the beginning, and later only
    after wide has become slow. Until then narrow keeps its memory released. While narrow is the
    faster one, wide has a trial every 0.8 s or sooner, or later if calls are so long that trials
    would cost more than 1/25 of the time.

    Threads may overwrite each other's measurements; the next call corrects this.
    """

    wide: bool = True
    _seconds: dict[bool, float] = field(default_factory=lambda: {True: inf, False: inf})
    _fastest_s: float = inf
    _trial_at: float = inf
    _calls_left: int = 0

    def next(self, now: float) -> bool:
        """Return True if the next call should be wide; `now` is monotonic time in seconds."""
        if not self._calls_left and now >= self._trial_at and self._is_doubtful():
            self._calls_left = _TRIAL_CALLS
        return self.wide != bool(self._calls_left)

    def _is_doubtful(self) -> bool:
        narrow_s = self._seconds[False]
        return not self.wide or narrow_s == inf or self._seconds[True] > _SLOW * self._fastest_s

    def learn(self, wide: bool, seconds: float, now: float) -> None:
        """Record the duration of a call; `seconds` and `now` are in seconds."""
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
    """A loaded model with a fixed number of threads per call. Calls may run in parallel."""

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch."""
        ...

    def rest(self) -> None:
        """Release working memory, unless a call is in progress.

        The next call allocates it again.
        """
        ...


L = TypeVar("L", bound=Layout)

# Parameters of `mallopt`, from <malloc.h> of glibc.
M_MMAP_THRESHOLD = -3
M_TRIM_THRESHOLD = -1
M_ARENA_MAX = -8


class CpuSession(Closing):
    """A `Session` that holds a *wide* and a *narrow* layout of its model.

    The wide layout gives all cores to one call, for the lowest latency of a single call. The narrow
    layout gives each of several parallel calls its own cores, usually one. It has the highest
    throughput under load, because no core waits for another at the end of a layer. A single call is
    also narrow if other processes on the machine make the wide layout slower.

    `optional_inputs` have defaults in the model, and a call may contain them.
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
        # If the duration depends on values, it shows nothing about the layouts.
        self._has_choice = steady and wide is not narrow
        self._lone: dict[object, LatencyLayout] = {}
        self._wide_streak = 0

    def infer(self, feeds: Mapping[str, Array], *, alone: bool = True) -> dict[str, Array]:
        """Run one batch; see `Session.infer`."""
        # A call in progress references its layout, so `close` frees the layout only afterwards.
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
        # Each combination of input shapes is measured separately.
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
        # Positive values count wide calls in a row, negative values narrow calls. Threads may miss
        # a count, which the next call corrects.
        streak = self._wide_streak
        if wide:
            self._wide_streak = max(streak, 0) + 1
        else:
            self._wide_streak = min(streak, 0) - 1
        if abs(self._wide_streak) == _REST_AFTER:
            other.rest()

    def close(self) -> None:
        """Release everything after the calls in progress have ended.

        A second call has no effect.
        """
        self._layouts = None


def fixed_rows(inputs: tuple[TensorSpec, ...], max_batch: int) -> int:
    """Return the fixed batch size of the model, or `max_batch` if it has none."""
    first = {spec.shape[0] for spec in inputs if spec.shape}
    return first.pop() if max_batch and len(first) == 1 and -1 not in first else max_batch


def load_layouts(load: Callable[[int], L], cores: int, streams: int) -> tuple[L, L]:
    """Load the wide layout with `cores` threads per call, and at the same time the narrow layout.

    The narrow layout divides the cores among `streams` parallel calls.
    """
    libc = ctypes.CDLL(None)
    # After the first free of a large block, glibc would raise the size from which it returns blocks
    # to the system. It would then keep memory that was used for loading: 30 of 220 MB for yolov8n
    # in OpenVINO.
    libc.mallopt(M_MMAP_THRESHOLD, 2 << 20)
    # glibc would also create a heap for nearly every thread, up to 8 per core. That takes 5 MB
    # here.
    libc.mallopt(M_ARENA_MAX, cores)
    width = cores // streams
    try:
        if width == cores:
            only = load(cores)
            return only, only
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="load-layout") as pool:
            wide, narrow = pool.map(load, (cores, width))
    finally:
        # Calls need blocks of the same sizes again and again. If tensors of 5 MB were returned to
        # the system each time, page faults would cost 4 ms. Larger blocks are returned, so that a
        # burst of large requests does not keep its memory.
        libc.mallopt(M_MMAP_THRESHOLD, 8 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, 32 << 20)
    return wide, narrow
