"""Measures the speed of engines on this machine, alternately and in two thread layouts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import Pixels
from fovea_engines.progress import Progress
from fovea_preprocess.errors import NotFinite

# Time that each engine runs in a round: the time of 16 calls, but at least .02 and at most .25
# seconds. An engine's first call after the calls of another engine is slower. With only a few
# calls, this first call would determine the result.
_CALLS, _SHORTEST_S, _LONGEST_S = 16, 0.02, 0.25
# Number of rounds in each thread layout: at least three, because a median needs them, and at most
# nine. After 1.25 seconds per engine, no further round begins.
_FEWEST, _MAX, _SECONDS = 3, 9, 1.25


@dataclass(frozen=True, slots=True)
class Rates:
    """Images per second of one engine in each round.

    Rates of several engines with the same index are from the same round.

    Attributes:
        alone: rates with one calling thread. Each call uses all cores.
        parallel: rates with `Session.concurrency` calling threads. Each call uses one core.
    """

    alone: tuple[float, ...]
    parallel: tuple[float, ...]


def call_rate(call: Callable[[int], object], *, callers: int, seconds: float) -> float:
    """Call from several threads for some time, and return the calls per second.

    Each thread calls at least once. The last calls are finished and counted.

    Args:
        call: function to call. Its argument is the number of earlier calls in the same thread.
        callers: number of threads.
        seconds: duration in seconds.
    """
    start = time.perf_counter()

    def call_on(_: int) -> int:
        calls = 0
        while not calls or time.perf_counter() - start < seconds:
            call(calls)
            calls += 1
        return calls

    with ThreadPoolExecutor(max_workers=callers) as pool:
        calls = sum(pool.map(call_on, range(callers)))
    return calls / (time.perf_counter() - start)


def time_engines(
    engines: Sequence[Callable[[], Engine]],
    images: Sequence[Pixels],
    progress: Progress,
    *,
    together: bool = True,
) -> list[Rates]:
    """Measure the speed of engines in rounds. In each round, every engine runs for a short time.

    With this order, other programs on the machine slow down all engines equally. A call includes
    all steps after the decoding of an image, as in a server, because these steps use the same cores
    as the engine and slow some runtimes down more than others. If `together` is False, only one
    engine can be open at a time. Then all rounds of an engine are measured before the next engine
    is opened, because opening an engine takes longer than measuring it. The measurement takes up to
    three seconds per engine, or more if a call takes over 250 ms.
    """
    alone: list[tuple[float, ...]] = []
    parallel: list[tuple[float, ...]] = []
    for group in [engines] if together else [[one] for one in engines]:
        alone += _rounds(group, images, True, progress)
        parallel += _rounds(group, images, False, progress)
    return list(map(Rates, _level(alone), _level(parallel)))


def _level(rates: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    fewest = min(map(len, rates))
    return [each[:fewest] for each in rates]


def _rounds(
    engines: Sequence[Callable[[], Engine]],
    images: Sequence[Pixels],
    alone: bool,
    progress: Progress,
) -> list[tuple[float, ...]]:
    def rate(opened: Callable[[], Engine], seconds: float) -> float:
        engine = opened()
        run = engine.outputs_of if engine.head is None else engine.predict

        def call(number: int) -> None:
            # Also measure calls whose output is not finite. `rejection` later rejects such an
            # engine.
            with suppress(NotFinite):
                run(images[number % len(images)], alone=alone)

        callers = 1 if alone else engine.session.concurrency
        return call_rate(call, callers=callers, seconds=seconds)

    slices = []
    for engine in engines:
        rate(engine, 0)
        calls = _CALLS / rate(engine, 0)
        slices.append(min(max(calls, _SHORTEST_S), _LONGEST_S))
    rounds: list[list[float]] = []
    end = time.perf_counter() + _SECONDS * len(engines)
    while len(rounds) < _FEWEST or (len(rounds) < _MAX and time.perf_counter() < end):
        rounds.append(list(map(rate, engines, slices)))
        progress.now(f"{'alone' if alone else 'in parallel'}, round {len(rounds)}")
    return list(zip(*rounds, strict=True))


def fastest(rates: Sequence[Sequence[float]], ties: Sequence[Sequence[float]]) -> int:
    """Return the index of the fastest engine.

    An engine is the fastest if no other engine is faster by `rates`. If several engines are equally
    fast, `ties` decides between them in the same way, and then the lowest index.
    """
    return _find_unbeaten(ties, _find_unbeaten(rates, range(len(rates))))[0]


def _find_unbeaten(rates: Sequence[Sequence[float]], among: Sequence[int]) -> Sequence[int]:
    """Return the indices of the fastest engines in `among`: no other engine is faster than these.

    If there is a faster engine for each engine, return all indices.
    """
    beaten = {one for one in among for other in among if is_faster(rates[other], rates[one])}
    return [one for one in among if one not in beaten] or among


def is_faster(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether the rates `one` are higher than the rates `other` in 75 % of the rounds."""
    ratios = [own / its for own, its in zip(one, other, strict=True)]
    return statistics.quantiles(ratios, n=4)[0] > 1
