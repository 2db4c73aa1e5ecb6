"""Runs a model on CPU cores, loaded in two thread layouts."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from fovea_engines.backends.feeds import check_feeds
from fovea_engines.backends.latency_layout import LatencyLayout
from fovea_engines.session import Array, Closing, TensorSpec
from fovea_preprocess.errors import InferenceFailed

# After this many calls in a row in one layout, the other releases its working memory.
_REST_AFTER = 16
# Shapes of inputs of which the faster layout is remembered.
_MAX_SHAPES = 64


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
