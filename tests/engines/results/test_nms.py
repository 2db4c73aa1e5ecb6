"""Suppression of boxes and of rotated rectangles against brute force, and of broken numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines import reference

from fovea_engines.results import nms
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.rotated import axes, iou, probiou

# Whole numbers in a small image: many overlaps, ties in score, ties in IoU.
PLACES, SIDES = st.integers(0, 20), st.integers(1, 16)
ANGLES = st.sampled_from([0.0, 0.5, 0.785, 1.2, -2.0])
SCORES, IDS = st.sampled_from([0.25, 0.5, 0.5, 0.75, 1.0]), st.integers(0, 2)
CANDIDATES = st.lists(st.tuples(PLACES, PLACES, SIDES, SIDES, ANGLES, SCORES, IDS), max_size=30)


def upright(rows):
    """Boxes x1 y1 x2 y2 of rows x1 y1 w h."""
    return [(x, y, x + w, y + h) for x, y, w, h, *_ in rows]


def run(rows, kind="upright", **options):
    """Suppress rows x y w h angle score class."""
    table = np.array(rows, np.float32).reshape(-1, 7)
    last = table[:, 5], table[:, 6].astype(np.int64), PredictOptions(**options)
    if kind == "upright":
        boxes = np.concatenate([table[:, :2], table[:, :2] + table[:, 2:4]], axis=1)
        return nms.detections(boxes, *last)
    return nms.rotated_detections(table[:, :5], *last, {"iou": iou, "probiou": probiou}[kind])


def overlap_of(kind, one, other):
    if kind == "upright":
        return reference.overlap(*upright([one, other]))
    tables = [axes(np.array([row[:5]], np.float32)) for row in (one, other)]
    return {"iou": iou, "probiou": probiou}[kind](*tables)[0]


def greedy(rows, kind, limit, agnostic):
    """The better first; one goes if a better one of its class that stays overlaps it by more."""
    kept = []
    for row in sorted(rows, key=lambda row: -row[5]):
        rivals = [one for one in kept if agnostic or one[6] == row[6]]
        if all(overlap_of(kind, one, row) <= limit for one in rivals):
            kept.append(row)
    return kept


@pytest.mark.parametrize("kind", ["upright", "iou", "probiou"])
@pytest.mark.parametrize("block", [1, 3, nms.BLOCK])
@given(CANDIDATES, st.sampled_from([0.0, 0.1, 0.5, 0.7, 1.0]), st.booleans(), st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_it_is_greedy_suppression_exactly(kind, block, rows, limit, agnostic, max_det):
    if kind != "upright" and 0 < limit < 1:
        limit += 3e-4  # no tie, which rounding would decide
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nms, "BLOCK", block)
        found = run(rows, kind, iou=limit, agnostic=agnostic, max_det=max_det, conf=0.25)
    expected = greedy(rows, kind, limit, agnostic)[:max_det]
    assert found.scores.tolist() == [row[5] for row in expected]
    assert found.class_ids.tolist() == [row[6] for row in expected]
    if kind == "upright":
        assert found.boxes.tolist() == [list(box) for box in upright(expected)]
    else:
        middles = np.reshape([row[:2] for row in expected], (-1, 2))
        assert found.rotated.shape == (len(expected), 5)
        assert np.allclose(found.rotated[:, :2], middles)


def test_a_chain_longer_than_a_block_is_followed():
    # Each box overlaps only its neighbours: greedy keeps every second one.
    rows = [(10 * i, 0, 19, 10, 0, 1 - i * 1e-3, 0) for i in range(500)]
    found = run(rows, iou=0.2, max_det=3000)
    assert found.boxes[:, 0].tolist() == [float(10 * i) for i in range(0, 500, 2)]


def test_an_overlap_of_exactly_iou_stays():
    # 7 of 10 pixels are shared.
    pair = [(0, 0, 10, 1, 0, 0.9, 0), (0, 0, 7, 1, 0, 0.8, 0)]
    assert len(run(pair, iou=0.7)) == 2
    assert len(run(pair, iou=0.69)) == 1


def test_equal_scores_keep_their_order_and_only_the_best_candidates_enter(monkeypatch):
    rows = [(20 * i, 0, 10, 10, 0, 0.5, 0) for i in range(200)]
    assert run(rows).boxes[:, 0].tolist() == [20.0 * i for i in range(200)]
    monkeypatch.setattr(nms, "MAX_CANDIDATES", 10)
    rows = [(20 * i, 0, 10, 10, 0, 0.3 + i * 0.01, 0) for i in range(50)]
    assert run(rows).scores == pytest.approx([0.79 - i * 0.01 for i in range(10)])


def test_upright_boxes_of_crossed_rectangles_overlap_and_both_stay():
    crossed = [(50, 50, 80, 6, 0.785, 0.9, 0), (50, 50, 80, 6, -0.785, 0.8, 0)]
    found = run(crossed, "probiou", iou=0.3)
    assert len(found) == 2
    boxes = found.boxes, found.scores, found.class_ids
    assert len(nms.detections(*boxes, PredictOptions(iou=0.3))) == 1


BAD = (np.nan, np.inf, -np.inf, 1e30)


@pytest.mark.parametrize(
    ("kind", "column", "bad"),
    [
        (kind, column, bad)
        for kind in ("upright", "probiou")
        for column in (0, 1, 2, 3, 5)
        for bad in BAD
    ]
    + [("probiou", 4, np.nan), ("probiou", 4, np.inf)],
)
def test_broken_candidates_are_dropped_and_harm_no_other(kind, column, bad):
    good, broken = (10, 10, 8, 4, 0.3, 0.5, 0), [10, 10, 8, 4, 0.3, 0.9, 0]
    broken[column] = bad
    expected = [1.0] if (column, bad) == (5, 1e30) else [0.5]
    assert run([broken, good], kind).scores.tolist() == expected


@pytest.mark.parametrize("kind", ["upright", "probiou"])
@pytest.mark.parametrize("sides", [(0, 4), (8, 0), (-8, 4), (-8, -4)])
def test_what_has_no_area_is_dropped(kind, sides):
    found = run([(10, 10, *sides, 0.3, 0.9, 0)], kind)
    assert found.boxes.shape == (0, 4)
    types = [each.dtype for each in (found.boxes, found.scores, found.class_ids)]
    assert types == [np.float32, np.float32, np.int32]


def test_hair_thin_boxes_overlap_with_nothing():
    thin = (0.0, 0.0, 1e-30, 1e-30, 0, 0.9, 0)
    assert len(run([thin, thin], iou=0.0)) == 2


@pytest.mark.parametrize("kind", ["upright", "iou"])
def test_only_the_wanted_classes_stay(kind):
    rows = [(10 * i, 10, 8, 4, 0.3, 0.9, i) for i in range(4)]
    assert run(rows, kind, classes=(1, 3)).class_ids.tolist() == [1, 3]
