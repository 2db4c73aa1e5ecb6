"""Suppression of rotated rectangles against brute force, and what it does with broken numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fovea_engines.results import nms
from fovea_engines.results.nms import rotated_detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.rotated import axes, iou, probiou

CANDIDATES = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(0, 30),
        st.integers(1, 25),
        st.integers(1, 25),
        st.sampled_from([0.0, 0.5, 0.785, 1.2, -2.0]),
        st.sampled_from([0.3, 0.5, 0.5, 0.75, 1.0]),
        st.integers(0, 2),
    ),
    max_size=30,
)


def run(rows, overlap=probiou, **options):
    table = np.array(rows, np.float32).reshape(-1, 7)
    ids = table[:, 6].astype(np.int64)
    return rotated_detections(table[:, :5], table[:, 5], ids, PredictOptions(**options), overlap)


def greedy(rows, limit, agnostic, overlap):
    """The better first; one goes if a better one of its class that stays overlaps it by more."""
    kept = []
    for row in sorted(rows, key=lambda row: -row[5]):
        tables = [axes(np.array([one[:5]], np.float32)) for one in kept]
        alike = [agnostic or one[6] == row[6] for one in kept]
        mine = axes(np.array([row[:5]], np.float32))
        if not any(
            same and overlap(table, mine)[0] > limit
            for table, same in zip(tables, alike, strict=True)
        ):
            kept.append(row)
    return kept


@pytest.mark.parametrize("overlap", [iou, probiou])
@pytest.mark.parametrize("block", [3, nms.BLOCK])
@given(CANDIDATES, st.sampled_from([0.0, 0.05, 0.3, 0.7, 1.0]), st.booleans(), st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_it_is_greedy_suppression_exactly(overlap, block, rows, limit, agnostic, max_det):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nms, "BLOCK", block)
        found = run(rows, overlap, iou=limit, agnostic=agnostic, max_det=max_det)
    expected = greedy(rows, limit, agnostic, overlap)[:max_det]
    assert found.scores.tolist() == [np.float32(row[5]) for row in expected]
    assert found.class_ids.tolist() == [row[6] for row in expected]
    assert np.allclose(found.rotated[:, :2], np.reshape([row[:2] for row in expected], (-1, 2)))


def test_upright_boxes_of_crossed_rectangles_overlap_and_both_stay():
    crossed = [(50, 50, 80, 6, 0.785, 0.9, 0), (50, 50, 80, 6, -0.785, 0.8, 0)]
    found = run(crossed, iou=0.3)
    assert len(found) == 2
    assert nms.detections(
        found.boxes, found.scores, found.class_ids, PredictOptions(iou=0.3)
    ).scores.tolist() == [np.float32(0.9)]


def test_only_the_wanted_classes_stay():
    rows = [(10 * i, 10, 8, 4, 0.3, 0.9, i) for i in range(4)]
    assert run(rows, classes=(1, 3)).class_ids.tolist() == [1, 3]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("column", range(4))
def test_broken_candidates_are_dropped_and_harm_no_other(bad, column):
    good = (10, 10, 8, 4, 0.3, 0.5, 0)
    broken = list((10, 10, 8, 4, 0.3, 0.9, 0))
    broken[column] = bad
    assert run([broken, good]).scores.tolist() == [0.5]


@pytest.mark.parametrize("angle", [np.nan, np.inf])
def test_what_has_no_angle_is_dropped(angle):
    assert len(run([(10, 10, 8, 4, angle, 0.9, 0)])) == 0


@pytest.mark.parametrize("sides", [(0, 4), (8, 0), (-8, 4)])
def test_what_has_no_area_is_dropped(sides):
    assert len(run([(10, 10, *sides, 0.3, 0.9, 0)])) == 0


def test_none_of_none_stays():
    found = run([])
    assert found.rotated.shape == (0, 5)
