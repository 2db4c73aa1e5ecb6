"""Times engines on this machine, in turn and in both thread layouts."""

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

# Length of an engine's turn in a round: the time of 16 calls, but at least and at most these
# seconds. The first call after other engines is slower, which would decide if there were few calls.
_CALLS, _SHORTEST_S, _LONGEST_S = 16, 0.02, 0.25
# Rounds in each layout: at least three, for a median, and at most nine within these seconds per
# engine.
_FEWEST, _MAX, _SECONDS = 3, 9, 1.25


@dataclass(frozen=True, slots=True)
class Rates:
    """Images per second of one engine in each round. Rounds of several engines belong together.

    Attributes:
        alone: rates with one caller, which uses all cores.
        parallel: rates with `Session.concurrency` callers, each with one core.
    """

    alone: tuple[float, ...]
    parallel: tuple[float, ...]


def call_rate(call: Callable[[int], object], *, callers: int, seconds: float) -> float:
    """Call from several threads for some time, and return the calls per second.

    Each thread calls at least once. The last calls are finished and counted.

    Args:
        call: gets the number of earlier calls of its thread.
        callers: number of threads.
        seconds: duration.
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
    """Time engines in turn, round by round, so that other load slows all of them equally.

    A call includes all steps after the decoding of an image, as in a server, because runtimes
    differ in how well they share the cores with these steps. If engines cannot be open `together`,
    they are timed one after the other, because opening one in every round takes longer than timing
    it. Timing takes up to three seconds per engine, or more if a call takes over 250 ms.
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
            # Time a call whose output is not finite, too. `rejection` rejects the engine later.
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
    """Return the index of the rates that no others beat; `ties` decides between several.

    If these are equal, too, the first index wins.
    """
    return _find_unbeaten(ties, _find_unbeaten(rates, range(len(rates))))[0]


def _find_unbeaten(rates: Sequence[Sequence[float]], among: Sequence[int]) -> Sequence[int]:
    """Return the indices whose rates no others beat; all indices if each is beaten by another."""
    beaten = {one for one in among for other in among if is_faster(rates[other], rates[one])}
    return [one for one in among if one not in beaten] or among


def is_faster(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether rates are higher than other rates in three of four rounds."""
    ratios = [own / its for own, its in zip(one, other, strict=True)]
    return statistics.quantiles(ratios, n=4)[0] > 1
