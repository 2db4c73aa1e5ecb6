"""Answers in full precision are those of the source model, or the difference is named."""

import numpy as np
import pytest

from fovea_engines.evaluation.agreement.identity import IdentityCheck, compare_detections
from fovea_engines.evaluation.agreement.measure import measure
from fovea_engines.evaluation.agreement.rows import align
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
        (found([12, 10, 50, 50, 0.9, 1]), r"bus\.jpg.* class 1 at \[10\.0 .* 2\.00 px"),
        (found([10, 10, 50, 50, 0.88, 1]), r"a score of 0\.020"),
        (found([10, 10, 50, 50, 0.9, 2]), "the engine finds no object of that class"),
        (found(), "the engine finds no object of that class"),
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
    with pytest.raises(Disagreement, match="column 2"):
        _check(head, want, want | {"prototypes": other})


def test_keypoints_are_compared():
    rows = np.zeros((1, 1, 57), np.float32)
    rows[0, 0, :6] = [8, 8, 40, 40, 0.9, 0]
    head = YoloV10Pose(("rows",), skeleton=PERSON)
    _check(head, {"rows": rows}, {"rows": rows})
    moved = rows.copy()
    moved[0, 0, 6] = 2
    with pytest.raises(Disagreement, match=r"2\.00"):
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
    with pytest.raises(Disagreement, match=r"0\.00"):
        _check(head, want, want | {"masks": -masks})


COUNT = 40
RANKED = frozenset({"boxes", "scores", "labels"})


def rows_of(*, batch=True):
    random = np.random.default_rng(0)
    outputs = {
        "boxes": random.uniform(0, 320, (1, COUNT, 4)).astype(np.float32),
        "scores": np.sort(random.uniform(0, 1, (1, COUNT)).astype(np.float32))[:, ::-1],
        "labels": random.integers(0, 80, (1, COUNT)),
    }
    return outputs if batch else {name: array[0] for name, array in outputs.items()}


def reordered(outputs, order):
    axis = 1 if outputs["scores"].ndim == 2 else 0
    return {name: np.take(array, order, axis) for name, array in outputs.items()}


def check_rows(want, have, ranked=RANKED):
    sample = Sample("bus.jpg", np.zeros((1, 3, 8, 8), np.float32), want, ranked)
    return measure(None, IdentityCheck(None).each([(sample, have)]))


@pytest.mark.parametrize("batch", [True, False])
def test_rows_of_all_outputs_move_together(batch):
    want = rows_of(batch=batch)
    have = reordered(want, np.random.default_rng(1).permutation(COUNT))
    for name, array in align(want, have, RANKED).items():
        np.testing.assert_array_equal(array, want[name])
    found = check_rows(want, have)
    assert (found.output_error, found.quality) == (0, 1)
    with pytest.raises(Disagreement, match="raw output"):
        check_rows(want, have, frozenset())


def test_rows_and_columns_that_were_mixed_disagree():
    want = rows_of()
    turned = reordered(want, np.arange(COUNT)[::-1])
    columns = {"boxes": want["boxes"][..., [1, 0, 3, 2]]}
    for mixed in ({"boxes": turned["boxes"]}, {"labels": turned["labels"]}, columns):
        with pytest.raises(Disagreement, match="raw output"):
            check_rows(want, want | mixed)


def test_a_row_too_few_or_too_many_disagrees():
    """In quality it costs its share."""
    rows = np.concatenate([rows_of(batch=False)["boxes"], np.ones((COUNT, 2))], axis=1)
    whole, less, none = ({"rows": some} for some in (rows, np.delete(rows, 7, axis=0), rows[:0]))
    for want, have in ((whole, less), (less, whole)):
        with pytest.raises(Disagreement, match=r"an output has the shape \[\d+, 6\]"):
            check_rows(want, have, frozenset(want))
    sample = Sample("bus.jpg", np.zeros((1, 3, 8, 8), np.float32), whole, frozenset(whole))
    lost = np.linalg.norm(rows[7]) / np.linalg.norm(rows)
    assert measure(None, [(sample, less)]).quality == pytest.approx(1 - lost)
    assert check_rows(none, none, frozenset(none)).output_error == 0


def test_the_scores_of_a_classifier_keep_their_order():
    want = {"scores": np.linspace(0, 1, 10, dtype=np.float32)[None]}
    with pytest.raises(Disagreement, match="raw output"):
        check_rows(want, {"scores": want["scores"][:, ::-1]}, RANKED)


def test_a_few_pixels_may_be_of_another_class():
    want = {"map": np.random.default_rng(0).integers(0, 19, (1, 64, 64), np.uint8)}
    have = {"map": want["map"].copy()}
    have["map"].flat[:30] = 18 - have["map"].flat[:30]
    assert 0 < check_rows(want, have).output_error < 0.01
    have["map"].flat[:90] = 40
    with pytest.raises(Disagreement, match="raw output"):
        check_rows(want, have)


def test_probabilities_next_to_0_are_as_exact_as_the_others():
    want = {"scores": np.float32([[[1e-5], [2e-6]]])}
    check_rows(want, {"scores": want["scores"] + np.finfo(np.float32).eps})
    with pytest.raises(Disagreement, match="raw output"):
        check_rows(want, {"scores": want["scores"] + np.float32(1e-6)})
