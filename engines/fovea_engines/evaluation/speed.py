"""Times engines on this machine, beside each other and in both thread layouts."""

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

# An engine runs in a round for so many calls, within so many seconds, or for a single call. After
# the other engines its first call is slower, and with few calls that decides.
_CALLS, _SHORTEST_S, _LONGEST_S = 16, 0.02, 0.25
# Rounds in each layout: as many as fit into the seconds of each engine, three for a median.
_FEWEST, _MAX, _SECONDS = 3, 9, 1.25


@dataclass(frozen=True, slots=True)
class Rates:
    """Images a second of one engine in each round; rounds of several engines belong together.

    Attributes:
        alone: of one caller, to which every core belongs.
        parallel: of `Session.concurrency` callers with one core each.
    """

    alone: tuple[float, ...]
    parallel: tuple[float, ...]


def call_rate(call: Callable[[int], object], *, callers: int, seconds: float) -> float:
    """Call from so many threads for so long, at least once each, and return the calls a second.

    `call` gets the number of calls that its thread made before. The last calls are finished and
    counted.
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
    """Time engines in turn, round by round, so that a busy neighbour slows each of them.

    A call is all that follows the decoding of an image, as a server does it: runtimes differ in how
    well they share the cores with the rest. Engines that cannot be open `together` are timed one
    after another, as to open one in every round takes longer than to time it. The timing takes up
    to three seconds for each engine, and more where a call takes over 250 ms.
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
            # Such an answer takes as long as another: `rejection` refuses it.
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
    """Return the position of rates that no others beat; of several, by `ties`.

    The earliest wins where these are equal, too.
    """
    return _find_unbeaten(ties, _find_unbeaten(rates, range(len(rates))))[0]


def _find_unbeaten(rates: Sequence[Sequence[float]], among: Sequence[int]) -> Sequence[int]:
    """Return the positions whose rates no others beat; all where each is beaten, in a circle."""
    beaten = {one for one in among for other in among if is_faster(rates[other], rates[one])}
    return [one for one in among if one not in beaten] or among


def is_faster(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether rates are higher than those of another in three rounds of four."""
    ratios = [own / its for own, its in zip(one, other, strict=True)]
    return statistics.quantiles(ratios, n=4)[0] > 1
