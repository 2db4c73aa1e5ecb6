"""Answers in full precision are those of the source model, or the difference is named."""

import numpy as np
import pytest

from fovea_engines.evaluation.agreement.identity import IdentityCheck, compare_detections
from fovea_engines.evaluation.reference import Sample
from fovea_engines.heads.end_to_end import YoloV10
from fovea_engines.heads.pose import YoloV10Pose
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.heads.segment import YoloV10Segment
from fovea_engines.results.detections import Detections
from fovea_engines.results.skeleton import PERSON
from fovea_preprocess.errors import Disagreement


def test_a_disagreement_says_what_differs_and_by_how_much():
    def found(*rows):
        array = np.array(rows, np.float32).reshape(-1, 6)
        return Detections(array[:, :4], array[:, 4], array[:, 5].astype(np.int32))

    want = found([10, 10, 50, 50, 0.9, 1], [5, 5, 9, 9, 0.045, 0])
    near = found([10.5, 10, 50, 50, 0.895, 1])
    box_px, score = compare_detections("bus.jpg", want, near, 0.05)
    assert box_px == pytest.approx(0.5)
    assert score == pytest.approx(0.005, abs=1e-6)
    for have, says in (
        (found([12, 10, 50, 50, 0.9, 1]), r"bus\.jpg .* class 1 at \[10\.0 .* 2\.00 px"),
        (found([10, 10, 50, 50, 0.88, 1]), r"0\.020 off"),
        (found([10, 10, 50, 50, 0.9, 2]), "none of that class"),
        (found(), "none of that class"),
        (found(*[[10, 10, 50, 50, 0.9, 1], [60, 60, 70, 70, 0.5, 1]]), "the engine finds"),
    ):
        with pytest.raises(Disagreement, match=says):
            compare_detections("bus.jpg", want, have, 0.05)


@pytest.mark.parametrize(
    ("best", "score", "px", "agrees"),
    [
        (0.9, 0.25, 0.9, True),  # from .25 on a box counts in full
        (0.9, 0.25, 1.1, False),
        (0.9, 0.05, 4.5, True),  # under that in proportion to its score
        (0.9, 0.05, 5.5, False),
        (0.9, 0.02, 10.0, True),
        (0.02, 0.02, 0.9, True),  # where nothing scores more, the best box counts in full
        (0.02, 0.02, 1.1, False),
        (0.02, 0.01, 1.9, True),
    ],
)
def test_a_box_is_weighted_by_its_score(best, score, px, agrees):
    def found(shift):
        boxes = np.array([[10, 10, 50, 50], [90 + shift, 90, 150, 150]], np.float32)
        return Detections(boxes, np.float32([best, score]), np.array([0, 1], np.int32))

    if agrees:
        box_px, _ = compare_detections("bus.jpg", found(0), found(px), score)
        assert box_px == pytest.approx(px * min(1, score / min(0.25, best)), abs=1e-4)
    else:
        with pytest.raises(Disagreement, match=r"1\.10 px \(weighted by score\)"):
            compare_detections("bus.jpg", found(0), found(px), score)


def test_what_just_reaches_the_threshold_has_its_partner_under_it():
    """Its score decides what is compared, so that the engine's may be less by a rounding error."""

    def answer(least):
        rows = np.zeros((1, 30, 6), np.float32)
        for i in range(20):
            rows[0, i] = (10, 10 * i, 40, 10 * i + 9, 0.04 - i * 0.001, 0)
        rows[0, 19, 4] = least
        rows[0, 20] = (10.95, 190, 40, 199, 0.0209, 0)
        return {"out": rows}

    check = IdentityCheck(YoloV10(("out",)))
    sample = Sample("bus.jpg", np.zeros((1, 3, 8, 8), np.float32), answer(np.float32(0.021)))
    assert list(check.each([(sample, answer(np.nextafter(np.float32(0.021), np.float32(0))))]))
    assert check.detections == 20
    assert check.box_px == 0
    assert check.score < 1e-8


def _check(head, want, have):
    row = np.zeros((1, 3, 64, 64), np.float32)
    list(IdentityCheck(head).each([(Sample("bus.jpg", row, want), have)]))


def test_prototypes_of_masks_are_compared():
    """Also the one to which no object on the image gives a weight."""
    rows = np.array([[[8, 8, 40, 40, 0.9, 1, 1, -1, 0]]], np.float32)
    prototypes = np.random.default_rng(3).normal(size=(1, 3, 16, 16)).astype(np.float32)
    head = YoloV10Segment(("rows", "prototypes"), size=(64, 64))
    want = {"rows": rows, "prototypes": prototypes}
    _check(head, want, want)
    other = prototypes.copy()
    other[0, 2] = prototypes[0, 1]
    with pytest.raises(Disagreement, match=r"column 2 of the prototypes \(of 3, from 0\)"):
        _check(head, want, want | {"prototypes": other})


def test_keypoints_are_compared():
    rows = np.zeros((1, 1, 57), np.float32)
    rows[0, 0, :6] = [8, 8, 40, 40, 0.9, 0]
    head = YoloV10Pose(("rows",), skeleton=PERSON)
    _check(head, {"rows": rows}, {"rows": rows})
    moved = rows.copy()
    moved[0, 0, 6] = 2
    with pytest.raises(Disagreement, match=r"the nearest of the other is 2\.00 px"):
        _check(head, {"rows": rows}, {"rows": moved})


def test_masks_of_queries_are_compared():
    """In whatever order the queries come."""
    random = np.random.default_rng(4)
    boxes = np.array([[[0.3, 0.3, 0.4, 0.4], [0.6, 0.7, 0.3, 0.3]]], np.float32)
    logits = np.array([[[3, -9], [-9, 2]]], np.float32)
    masks = random.normal(size=(1, 2, 8, 8)).astype(np.float32)
    head = FAMILIES["rfdetr-seg"](("labels", "dets", "masks"), size=(64, 64))
    want = {"labels": logits, "dets": boxes, "masks": masks}
    _check(head, want, want)
    _check(head, want, {name: array[:, ::-1] for name, array in want.items()})
    with pytest.raises(Disagreement, match=r"one mask of the source model overlaps by 0\.00"):
        _check(head, want, want | {"masks": -masks})
