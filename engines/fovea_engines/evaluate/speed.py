"""Times sessions on this machine, beside each other and in both thread layouts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fovea_engines.progress import Progress
from fovea_engines.session import Array, Session

Feeds = Mapping[str, Array]

# A session runs in a round for so many calls, within so many seconds, or for a single call. After
# the other sessions its first call is slower, and with few calls that decides.
_CALLS, _SHORTEST_S, _LONGEST_S = 16, 0.02, 0.25
# Rounds in each layout: as many as fit into the seconds of each session, three for a median.
_FEWEST, _MOST, _SECONDS = 3, 9, 1.25


@dataclass(frozen=True, slots=True)
class Rates:
    """Calls a second of one session in each round; rounds of several sessions belong together.

    Attributes:
        alone: of one caller, to which every core belongs.
        parallel: of `Session.concurrency` callers with one core each.
    """

    alone: tuple[float, ...]
    parallel: tuple[float, ...]


def call_rate(
    session: Session, feeds: Sequence[Feeds], *, callers: int, alone: bool, seconds: float
) -> float:
    """Call from so many threads for so long, at least once each, and return the calls a second.

    The feeds take turns. The last calls are finished and counted.
    """
    start = time.perf_counter()

    def call_on(_: int) -> int:
        calls = 0
        while not calls or time.perf_counter() - start < seconds:
            session.infer(feeds[calls % len(feeds)], alone=alone)
            calls += 1
        return calls

    with ThreadPoolExecutor(max_workers=callers) as pool:
        calls = sum(pool.map(call_on, range(callers)))
    return calls / (time.perf_counter() - start)


def time_sessions(
    sessions: Sequence[Session], feeds: Sequence[Feeds], progress: Progress
) -> list[Rates]:
    """Time sessions in turn, round by round, so that a busy neighbour slows each of them.

    It takes up to three seconds for each, and more where a call takes over 250 ms.
    """
    alone, parallel = (_rounds(sessions, feeds, layout, progress) for layout in (True, False))
    return list(map(Rates, alone, parallel))


def _rounds(
    sessions: Sequence[Session], feeds: Sequence[Feeds], alone: bool, progress: Progress
) -> list[tuple[float, ...]]:
    def rate(session: Session, seconds: float) -> float:
        callers = 1 if alone else session.concurrency
        return call_rate(session, feeds, callers=callers, alone=alone, seconds=seconds)

    slices = []
    for session in sessions:
        rate(session, 0)
        calls = _CALLS / rate(session, 0)
        slices.append(min(max(calls, _SHORTEST_S), _LONGEST_S))
    rounds: list[list[float]] = []
    end = time.perf_counter() + _SECONDS * len(sessions)
    while len(rounds) < _FEWEST or (len(rounds) < _MOST and time.perf_counter() < end):
        rounds.append(list(map(rate, sessions, slices)))
        progress.now(f"{'alone' if alone else 'in parallel'}, round {len(rounds)}")
    return list(zip(*rounds, strict=True))


def fastest(rates: Sequence[Sequence[float]]) -> int:
    """Return the position of the highest rates, the earlier of two that are equal within noise.

    One is faster than another if it is in three rounds of four.
    """
    best = 0
    for position, those in enumerate(rates):
        ratios = [one / other for one, other in zip(those, rates[best], strict=True)]
        if statistics.quantiles(ratios, n=4)[0] > 1:
            best = position
    return best
