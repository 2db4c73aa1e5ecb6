"""Works on many things in several threads, in order and ahead of the results that are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Thing = TypeVar("Thing")
Done = TypeVar("Done")

_PAUSE_S = 0.05


def in_order(
    work: Callable[[Thing], Done], things: Iterable[Thing], *, threads: int, ahead: int
) -> Generator[Done]:
    """Yield the result of `work` for each thing, in their order.

    At most `ahead` things are taken before the oldest result is read, so memory is bounded. What
    `work` raises is raised in its turn, and what `things` raises at once. A caller that leaves
    drops what was not begun.
    """
    waiting: deque[Future[Done]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="predict")
    try:
        for thing in things:
            waiting.append(pool.submit(work, thing))
            if len(waiting) == ahead:
                # Each wake-up takes a core from the threads, so several results are read at once.
                futures.wait((waiting[(ahead - threads) // 2],), timeout=_PAUSE_S)
                yield waiting.popleft().result()
                while waiting and waiting[0].done():
                    yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
