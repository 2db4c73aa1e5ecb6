"""The agreement of rotated boxes is measured by the overlap of the rectangles."""

import math

import numpy as np
import pytest

from fovea_engines.evaluation.agreement.identity import compare_detections
from fovea_engines.evaluation.agreement.matching import CONF, MARGIN, match
from fovea_engines.evaluation.agreement.overlap import rotated_iou
from fovea_engines.results.detections import Detections
from fovea_engines.results.rotated import bounds, regular
from fovea_preprocess.errors import Disagreement


def found(*rows):
    """Detections of one class of cx cy w h angle, the first the best."""
    table = np.array(rows, np.float32).reshape(-1, 5)
    scores = np.linspace(0.9, 0.6, len(table)).astype(np.float32)
    boxes = bounds(table).astype(np.float32)
    return Detections(boxes, scores, np.zeros(len(table), np.int32), rotated=regular(table))


def quality(want, have):
    return match(want, have, CONF, MARGIN).quality


def test_every_pair_has_its_overlap():
    one = np.array([(0, 0, 4, 2, 0), (50, 50, 4, 2, 1)], np.float32)
    other = np.array([(1, 0, 4, 2, 0), (0, 0, 2, 4, 0), (50, 50, 4, 2, 1)], np.float32)
    expected = [[6 / 10, 4 / 12, 0], [0, 0, 1]]
    assert rotated_iou(one, other) == pytest.approx(np.array(expected))
    assert rotated_iou(one, other[:0]).shape == (2, 0)


def test_what_is_turned_the_other_way_is_missed_though_its_upright_box_is_the_same():
    want, have = found((50, 50, 80, 10, 0.6)), found((50, 50, 80, 10, -0.6))
    assert np.allclose(want.boxes, have.boxes)
    matching = match(want, have, CONF, MARGIN)
    assert (matching.missed, matching.extra) == (1, 1)
    with pytest.raises(Disagreement, match=r"\d px"):
        compare_detections("bus.jpg", want, have, 0.05)


def test_a_small_turn_costs_its_overlap():
    want = found((50, 50, 40, 20, 0.6))
    assert 0.9 < quality(want, found((50, 50, 40, 20, 0.65))) < 0.97
    assert quality(want, found((50, 50, 40, 20, 0.6))) == pytest.approx(1)


@pytest.mark.parametrize(
    "row",
    [(50, 50, 20.001, 20, 0.3), (50, 50, 30, 20, -1e-4), (50, 50, 30, 20, math.pi - 1e-4)],
    ids=["sides change places", "just under 0", "just under pi"],
)
def test_another_regular_row_of_almost_the_same_is_no_difference(row):
    want = found((50, 50, 20, 20.001, 0.3) if row[2] < 30 else (50, 50, 30, 20, 1e-4))
    box_px, _ = compare_detections("bus.jpg", want, found(row), 0.05)
    assert box_px < 0.02
    assert quality(want, found(row)) > 0.999
