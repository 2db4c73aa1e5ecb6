"""Rates of engines, and the fastest of them within noise."""

import numpy as np
import pytest

from fovea_engines.engine import Engine
from fovea_engines.evaluation import speed
from fovea_engines.evaluation.speed import call_rate, fastest, time_engines
from fovea_engines.progress import Progress


@pytest.mark.parametrize(
    ("rates", "position"),
    [
        ([(5, 5, 5), (6, 6, 6)], 1),
        ([(6, 6, 6), (5, 5, 5)], 0),
        ([(5, 5, 5, 5, 5), (9, 9, 4, 4, 9)], 0),  # faster in three of five
        ([(5, 5, 5, 5, 5, 5, 5), (6, 6, 6, 6, 4, 6, 6)], 1),
        ([(5, 1, 5), (5.1, 1.1, 5.1)], 1),  # a neighbour slowed both in the second round
        ([(5, 5, 5), (5, 5, 5)], 0),
        ([(5, 5, 5), (6, 6, 6), (7, 7, 7), (1, 1, 1)], 2),
    ],
)
def test_the_earlier_wins_within_noise(rates, position):
    assert fastest(rates, [(1, 1, 1)] * len(rates)) == position


def test_the_other_layout_decides_within_noise():
    noisy, steady = (9, 4, 4, 9, 4), (5, 5, 5, 5, 5)
    slow, quick = (1,) * 5, (2,) * 5
    for one, other in ((noisy, steady), (steady, noisy)):
        assert fastest([one, other], [slow, quick]) == 1
        assert fastest([one, other], [quick, slow]) == 0
    assert fastest([(6,) * 5, steady], [slow, quick]) == 0
    assert fastest([steady, (6,) * 5], [quick, slow]) == 1


def test_engines_are_timed_in_both_layouts(built_repository, monkeypatch):
    monkeypatch.setattr(speed, "_SECONDS", 0.5)
    monkeypatch.setattr(speed, "_LONGEST_S", 0.25)
    folder = built_repository / "tiny" / "1"
    images = [np.full((48, 64, 3), value, np.uint8) for value in (50, 180)]
    with Engine.open(folder) as one, Engine.open(folder) as other:
        found = time_engines([lambda: one, lambda: other], images, Progress())
    assert len(found) == 2
    for rates in found:
        assert len(rates.alone) >= 3
        assert len(rates.alone) == len(found[0].alone)
        assert min(*rates.alone, *rates.parallel) > 0


def test_every_caller_calls_at_least_once():
    calls = []
    assert call_rate(calls.append, callers=3, seconds=0) > 0
    assert calls == [0, 0, 0]


def test_what_another_beats_is_not_kept_by_a_tie():
    """The third ties with the second, and that with the first, which beats the third."""
    rates = [(10,) * 4, (9, 11, 9, 11), (9.5,) * 4]
    assert fastest(rates, [(1,) * 4, (2,) * 4, (3,) * 4]) == 1
    # Each beats the next in three rounds of four.
    circle = [(4, 3, 2, 1), (3, 2, 1, 4), (2, 1, 4, 3), (1, 4, 3, 2)]
    assert fastest(circle, circle) == 0
