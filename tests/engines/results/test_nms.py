"""Suppression against brute force, and what it does with broken numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines import reference

from fovea_engines.results import nms
from fovea_engines.results.nms import detections
from fovea_engines.results.options import PredictOptions

# Whole coordinates in a small image: many overlaps, ties in score, ties in IoU.
CANDIDATES = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.integers(0, 12),
        st.integers(1, 12),
        st.integers(1, 12),
        st.sampled_from([0.25, 0.5, 0.5, 0.75, 1.0]),
        st.integers(0, 2),
    ),
    max_size=40,
)


def run(rows, **options):
    table = np.array(rows, dtype=np.float32).reshape(-1, 6)
    return detections(
        table[:, :4], table[:, 4], table[:, 5].astype(np.int64), PredictOptions(**options)
    )


def as_rows(found):
    columns = (found.boxes.tolist(), found.scores.tolist(), found.class_ids.tolist())
    return [(*box, score, class_id) for box, score, class_id in zip(*columns, strict=True)]


@pytest.mark.parametrize("block", [1, 3, nms.BLOCK])
@given(CANDIDATES, st.sampled_from([0.0, 0.1, 0.5, 0.7, 1.0]), st.booleans(), st.integers(1, 50))
@settings(max_examples=120, deadline=None)
def test_it_is_greedy_suppression_exactly(block, rows, iou, agnostic, max_det):
    boxes = [(x, y, x + w, y + h, score, class_id) for x, y, w, h, score, class_id in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nms, "BLOCK", block)
        found = run(boxes, iou=iou, agnostic=agnostic, max_det=max_det, conf=0.25)
    expected = [boxes[i] for i in reference.suppress(boxes, iou, agnostic)]
    assert as_rows(found) == expected[:max_det]


def test_a_chain_longer_than_a_block_is_followed():
    # Each box overlaps only its neighbours: greedy keeps every second one.
    rows = [(10 * i, 0, 10 * i + 19, 10, 1 - i * 1e-3, 0) for i in range(500)]
    found = run(rows, iou=0.2, max_det=3000)
    assert found.boxes[:, 0].tolist() == [float(10 * i) for i in range(0, 500, 2)]


def test_an_overlap_of_exactly_iou_stays():
    # 7 of 10 pixels are shared.
    pair = [(0, 0, 10, 1, 0.9, 0), (0, 0, 7, 1, 0.8, 0)]
    assert len(run(pair, iou=0.7)) == 2
    assert len(run(pair, iou=0.69)) == 1


def test_equal_scores_keep_their_order():
    rows = [(20 * i, 0, 20 * i + 10, 10, 0.5, 0) for i in range(200)]
    assert run(rows).boxes[:, 0].tolist() == [20.0 * i for i in range(200)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("column", range(5))
def test_broken_candidates_are_dropped_and_harm_no_other(bad, column):
    good = (0, 0, 10, 10, 0.5, 0)
    broken = list((0, 0, 10, 10, 0.9, 0))
    broken[column] = bad
    found = run([broken, good])
    if column == 4 and bad == 1e30:
        assert found.scores.tolist() == [1.0]
    else:
        assert as_rows(found) == [good]


def test_boxes_without_area_are_dropped():
    assert len(run([(5, 5, 5, 9, 0.9, 0), (5, 5, 9, 5, 0.9, 0), (9, 9, 5, 5, 0.9, 0)])) == 0


def test_hair_thin_boxes_overlap_with_nothing():
    thin = (0.0, 0.0, 1e-30, 1e-30, 0.9, 0)
    assert len(run([thin, thin], iou=0.0)) == 2


def test_only_the_best_candidates_enter(monkeypatch):
    monkeypatch.setattr(nms, "MAX_CANDIDATES", 10)
    rows = [(20 * i, 0, 20 * i + 10, 10, 0.3 + i * 0.01, 0) for i in range(50)]
    assert run(rows).scores == pytest.approx([0.79 - i * 0.01 for i in range(10)])


def test_results_have_their_types_when_nothing_is_found():
    found = run([])
    assert found.boxes.shape == (0, 4)
    assert (found.boxes.dtype, found.scores.dtype) == (np.float32, np.float32)
    assert found.class_ids.dtype == np.int32
