"""Runs a model on CPU cores, loaded in two thread layouts."""

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

# Weight of a call in the smoothed time of its layout.
_SMOOTHING = 0.25
# Wide has become slow when it takes so many times what it took at its fastest.
_SLOW = 1.2
# Seconds from a trial of the other layout to the next one: so many that trials cost a fiftieth of
# the time, but not over .8 s unless they would then cost more than a twenty-fifth.
_SOONEST_S, _SOON_S = 0.25, 0.8
_COST, _MAX_COST = 0.02, 0.04
# The first call after a change finds cold caches and memory that was released: it shows nothing.
# But a wide call that takes so many times what a narrow one does, and so many seconds more, is
# slower when it is warm, too: beside no neighbour it takes about half as long as a narrow one.
_TRIAL_CALLS = 2
_CLEAR, _CLEAR_S = 1.25, 0.02

# After this many calls in a row in one layout, the other releases its working memory.
_REST_AFTER = 16
# Shapes of inputs of which the faster layout is remembered.
_MAX_SHAPES = 64


@dataclass(slots=True)
class LatencyLayout:
    """The layout of lone calls on inputs of the same shapes: wide, or narrow where that is faster.

    The threads of a wide call wait for each other at the end of each layer, so a core that somebody
    else needs slows all of it. After one first trial, narrow is tried only once wide has become
    slow; until then its memory stays released. While narrow is the faster one, wide has a trial
    every .8 s or sooner, and later only where calls are so long that the trial would cost a
    twenty-fifth of the time.

    Threads may overwrite each other's measurements; the next call corrects that.
    """

    wide: bool = True
    _seconds: dict[bool, float] = field(default_factory=lambda: {True: inf, False: inf})
    _fastest_s: float = inf
    _trial_at: float = inf
    _calls_left: int = 0

    def next(self, now: float) -> bool:
        """Return True if the next call is to be wide; `now` is in seconds of a monotonic clock."""
        if not self._calls_left and now >= self._trial_at and self._is_doubtful():
            self._calls_left = _TRIAL_CALLS
        return self.wide != bool(self._calls_left)

    def _is_doubtful(self) -> bool:
        narrow_s = self._seconds[False]
        return not self.wide or narrow_s == inf or self._seconds[True] > _SLOW * self._fastest_s

    def learn(self, wide: bool, seconds: float, now: float) -> None:
        """Record what a call took."""
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
    """A loaded model with a fixed number of threads per call; calls may overlap."""

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch."""
        ...

    def rest(self) -> None:
        """Release working memory unless a call is in progress; the next call allocates it."""
        ...


L = TypeVar("L", bound=Layout)

# <malloc.h> of glibc
M_MMAP_THRESHOLD = -3
M_TRIM_THRESHOLD = -1
M_ARENA_MAX = -8


class CpuSession(Closing):
    """A `Session` that holds a *wide* and a *narrow* layout of its model.

    Wide gives one call every core: lowest latency for a single call. Narrow gives each of several
    calls its own cores, usually one: highest throughput under load, because no core waits for
    another at the end of a layer. A lone call is narrow, too, while a neighbour of this process
    makes wide the slower one. `optional_inputs` have a default in the model, and may be fed.
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
        # Where times depend on values, they tell nothing about the layouts.
        self._has_choice = steady and wide is not narrow
        self._lone: dict[object, LatencyLayout] = {}
        self._wide_streak = 0

    def infer(self, feeds: Mapping[str, Array], *, alone: bool = True) -> dict[str, Array]:
        """Run one batch; see `Session.infer`."""
        # A call in progress references its layout, so `close` frees it only afterwards.
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
        # Nothing is known of other shapes.
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
        # Positive for wide calls in a row, negative for narrow ones. Threads may miss a count; the
        # next call corrects it.
        streak = self._wide_streak
        if wide:
            self._wide_streak = max(streak, 0) + 1
        else:
            self._wide_streak = min(streak, 0) - 1
        if abs(self._wide_streak) == _REST_AFTER:
            other.rest()

    def close(self) -> None:
        """Release everything once the calls in progress are done. Calling it again does nothing."""
        self._layouts = None


def fixed_rows(inputs: tuple[TensorSpec, ...], max_batch: int) -> int:
    """Return the fixed batch of the model; without one, `max_batch`."""
    first = {spec.shape[0] for spec in inputs if spec.shape}
    return first.pop() if max_batch and len(first) == 1 and -1 not in first else max_batch


def load_layouts(load: Callable[[int], L], cores: int, streams: int) -> tuple[L, L]:
    """Load the wide layout, with `cores` threads a call, and the narrow one at the same time.

    The narrow one shares the cores out to `streams` parallel calls.
    """
    libc = ctypes.CDLL(None)
    # After the first free of a large block, glibc would raise the size from which blocks are
    # returned to the system, and keep the memory used for loading: 30 MB of yolov8n's 220 in
    # OpenVINO.
    libc.mallopt(M_MMAP_THRESHOLD, 2 << 20)
    # It would also create a heap for nearly every thread, up to 8 per core: 5 MB here.
    libc.mallopt(M_ARENA_MAX, cores)
    width = cores // streams
    try:
        if width == cores:
            only = load(cores)
            return only, only
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="load-layout") as pool:
            wide, narrow = pool.map(load, (cores, width))
    finally:
        # Calls need blocks of the same sizes again and again. Returned to the system each time,
        # tensors of 5 MB would cost 4 ms of page faults. Larger blocks are returned, so that a
        # burst of large bodies does not stay.
        libc.mallopt(M_MMAP_THRESHOLD, 8 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, 32 << 20)
    return wide, narrow
