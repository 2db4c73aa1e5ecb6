"""How well two models agree, on cases that can be worked out by hand."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from fovea_engines.build.acceptance import MIN_QUALITY, rejection
from fovea_engines.evaluation.agreement.matching import CONF, MARGIN, match
from fovea_engines.evaluation.agreement.measure import NO_NUMBER, measure
from fovea_engines.evaluation.agreement.overlap import iou
from fovea_engines.evaluation.reference import Sample
from fovea_engines.heads.classifier import ClassifierLogits
from fovea_engines.heads.end_to_end import YoloV10
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.repository.accuracy import Accuracy
from fovea_engines.repository.figures import WorstImage
from fovea_engines.results.detections import Detections

HEAD = YoloV10(("out",))
SQUARE = (10, 10, 50, 50)
HALF_RIGHT = (20, 10, 60, 50)  # overlaps SQUARE by 30 of 50 columns
FAR = (200, 200, 240, 260)
ROW = np.zeros((1, 3, 8, 8), np.float32)


def found(*detections) -> Detections:
    """Detections of (box, score, class)."""
    boxes = np.array([box for box, _, _ in detections], np.float32).reshape(-1, 4)
    scores = np.array([score for _, score, _ in detections], np.float32)
    return Detections(boxes, scores, np.array([c for *_, c in detections], np.int32))


def output(*detections) -> dict[str, np.ndarray]:
    """The same as an end-to-end model gives them."""
    rows = np.zeros((1, 9, 6), np.float32)
    for i, (box, score, class_id) in enumerate(detections):
        rows[0, i] = (*box, score, class_id)
    return {"out": rows}


def agreement(*pairs, head=HEAD):
    """Of images that are named by their place, each (source's output, engine's output)."""
    return measure(
        head, [(Sample(f"{i}", ROW, want), have) for i, (want, have) in enumerate(pairs)]
    )


def test_overlap():
    one = np.array([SQUARE, FAR, (5, 5, 5, 9)], np.float32)
    other = np.array([SQUARE, HALF_RIGHT, (1000, 0, 1010, 10)], np.float32)
    assert iou(one, other) == pytest.approx(np.array([[1, 0.6, 0], [0, 0, 0], [0, 0, 0]]))
    assert iou(one, other[:0]).shape == (3, 0)


def test_one_of_each():
    matching = match(
        found((SQUARE, 0.9, 1), (FAR, 0.8, 1), ((0, 0, 9, 9), 0.7, 2)),
        found((HALF_RIGHT, 0.6, 1), (FAR, 0.5, 2), ((300, 0, 309, 9), 0.4, 2)),
        CONF,
        MARGIN,
    )
    assert list(matching.want) == list(matching.have) == [0]
    assert matching.overlap == pytest.approx([0.6])
    # FAR is of another class in the engine, and each has a box that the other has not.
    assert (matching.missed, matching.extra) == (2, 2)
    assert matching.quality == pytest.approx(0.6 / (1 + (2 + 2) / 2))


def test_the_better_detection_takes_the_partner():
    matching = match(
        found((SQUARE, 0.9, 0), (HALF_RIGHT, 0.8, 0)), found((SQUARE, 0.9, 0)), CONF, MARGIN
    )
    assert list(matching.want) == [0]
    assert (matching.missed, matching.extra) == (1, 0)


def test_boxes_that_overlap_by_less_than_half_are_no_partners():
    shifted = (27, 10, 67, 50)  # 23 of 57 columns
    matching = match(found((SQUARE, 0.9, 0)), found((shifted, 0.9, 0)), CONF, MARGIN)
    assert (matching.missed, matching.extra, matching.quality) == (1, 1, 0)


@pytest.mark.parametrize(
    ("want", "have", "matched", "missed", "extra"),
    [
        (0.26, 0.24, 1, 0, 0),  # lost its place at the threshold, and is no loss
        (0.24, 0.26, 1, 0, 0),
        (0.26, 0.20, 1, 0, 0),
        (0.26, 0.19, 0, 1, 0),
        (0.19, 0.26, 0, 0, 1),
        (0.24, 0.24, 0, 0, 0),  # under the threshold in both
        (0.90, 0.30, 1, 0, 0),
    ],
)
def test_the_threshold_has_a_margin(want, have, matched, missed, extra):
    result = match(found((SQUARE, want, 0)), found((SQUARE, have, 0)), CONF, MARGIN)
    assert (len(result.overlap), result.missed, result.extra) == (matched, missed, extra)
    # As the head decodes it, down to the margin, it is the same.
    both = agreement((output((SQUARE, want, 0)), output((SQUARE, have, 0))))
    assert (both.missed, both.extra) == (missed, extra)


def test_no_detections_on_either_side_or_on_both():
    assert match(found(), found(), CONF, MARGIN).quality == 1
    assert match(found((SQUARE, 0.9, 0)), found(), CONF, MARGIN).missed == 1
    assert match(found(), found((SQUARE, 0.9, 0)), CONF, MARGIN).extra == 1


def test_figures_of_several_images():
    same = output((SQUARE, 0.9, 0), (FAR, 0.5, 1))
    figures = agreement(
        (same, same),
        (output((SQUARE, 0.9, 0)), output((HALF_RIGHT, 0.7, 0))),
        (output((FAR, 0.6, 1)), output()),
        (output(), output()),
    )
    assert (figures.images, figures.detections) == (4, 4)
    assert (figures.missed, figures.extra) == (1, 0)
    assert figures.mean_iou == pytest.approx((1 + 1 + 0.6) / 3)
    assert figures.score_drift == pytest.approx((0 + 0 - 0.2) / 3)
    assert figures.score == pytest.approx(0.2)
    assert figures.box_px == 10
    assert figures.quality == pytest.approx((1 + 1 + 0.6) / (3 + 0.5))
    assert figures.same_top is None
    # One missed detection is half of one, a pair of overlap .6 lacks .4 of one.
    assert figures.worst == (WorstImage("2", 0, 0.5, 1, 0), WorstImage("1", 0.6, 0.4, 0, 0))


def test_without_detections_the_outputs_decide():
    want = output((SQUARE, 0.1, 0))
    have = {"out": want["out"] * np.float32(1.1)}
    figures = agreement((want, have))
    assert figures.detections == 0
    assert figures.mean_iou is None
    assert figures.score_drift is None
    # A tenth of everything is a relative error of a tenth.
    assert figures.quality == pytest.approx(0.9)
    assert figures.output_error == pytest.approx(0.1)
    assert agreement((want, {"out": want["out"] * 3})).quality == 0
    assert agreement((output(), output())).quality == 1


def test_the_worst_output_speaks_for_all():
    want = {"a": np.full((1, 4, 5), 2.0), "b": np.full((1, 3, 5), 2.0)}
    have = {"a": want["a"], "b": want["b"] / 2}
    assert agreement((want, have), head=None).quality == pytest.approx(0.5)


def test_the_worst_output_is_one_and_the_same_on_all_images():
    """Else an output that is wrong hides behind larger ones that are right."""

    def outputs(a, b):
        return {"a": np.array([[float(a)]]), "b": np.array([[float(b)]])}

    figures = agreement(
        (outputs(1, 100), outputs(2, 100)), (outputs(10, 100), outputs(10, 101)), head=None
    )
    assert figures.quality == pytest.approx(1 - np.sqrt(1 / 101))
    # An output that is no number is the worst, wherever it stands.
    for have in (outputs(np.nan, 1), outputs(1, np.nan)):
        assert agreement((outputs(1, 1), have), head=None).quality == 0


def test_images_are_ranked_by_what_they_lose():
    """Not by their quality: one box too many where there was none is no great loss."""
    crowd = [((60 * i, 10, 60 * i + 40, 50), 0.9, 0) for i in range(6)]
    figures = agreement(
        (output(), output((SQUARE, 0.3, 0))),
        (output(*crowd), output(*crowd[:3])),
        (output((SQUARE, 0.9, 0)), output((HALF_RIGHT, 0.9, 0))),
    )
    assert [one.name for one in figures.worst] == ["1", "0", "2"]
    assert [one.quality for one in figures.worst] == [0.6667, 0, 0.6]
    assert [one.lost for one in figures.worst] == [1.5, 0.5, 0.4]
    assert [(one.missed, one.extra) for one in figures.worst] == [(3, 0), (0, 1), (0, 0)]


def softmax(*values):
    return np.exp(values) / np.exp(values).sum()


def test_a_classifiers_first_classes():
    def scores(*values):
        return {"logits": np.array([values], np.float32)}

    figures = agreement(
        (scores(1, 9, 2), scores(1, 8, 2)),
        (scores(1, 9, 2), scores(9, 8, 2)),
        (scores(5, 1, 2), scores(5, 1, 2)),
        head=ClassifierLogits(("logits",)),
    )
    assert figures.same_top == pytest.approx(2 / 3)
    assert figures.same_order == pytest.approx((3 + 0 + 3) / 9)
    assert figures.least == min(figures.quality, figures.same_top)
    drift = np.mean(
        np.concatenate(
            [softmax(1, 8, 2) - softmax(1, 9, 2), softmax(9, 8, 2) - softmax(1, 9, 2), np.zeros(3)]
        )
    )
    assert figures.score_drift == pytest.approx(drift, abs=1e-6)
    assert figures.score == pytest.approx(softmax(9, 8, 2)[0], abs=1e-3)
    assert [one.name for one in figures.worst] == ["1", "0"]
    assert [one.lost for one in figures.worst] == [
        pytest.approx(1 - one.quality, abs=1e-4) for one in figures.worst
    ]
    assert {one.missed for one in figures.worst} == {None}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("head", [HEAD, None])
def test_what_is_no_number_never_passes(card, value, precision, head):
    """Not even in one row of many that no detection is read from."""
    want = output((SQUARE, 0.9, 0), (FAR, 0.1, 0))
    have = {"out": want["out"].copy()}
    have["out"][0, 1, 2] = value
    figures = agreement((want, want), (want, have), head=head)
    assert figures.output_error == NO_NUMBER
    perfect = Accuracy(9, 0.9, 0.9, {}, {})
    judged = replace(card, precision=precision, agreement=figures)
    for accuracy in ({}, {"fp32": perfect, precision: perfect}):
        reason = rejection(replace(judged, accuracy=accuracy), 1.0)
        assert f"of the {precision.upper()} engine is NaN" in reason
    # The card is JSON to the letter, and can be read again.
    document = judged.to_json()
    json.dumps(document, allow_nan=False)
    assert type(judged).from_json(document).agreement == figures


def test_what_the_source_says_likewise_is_no_difference():
    want = {"out": np.array([[[np.inf, -np.inf, np.nan, 1.0]]])}
    figures = agreement((want, {"out": want["out"].copy()}), head=None)
    assert (figures.quality, figures.output_error) == (1, 0)


def test_an_output_of_another_shape_never_passes(card):
    want = {"out": np.zeros((1, 5, 6), np.float32)}
    have = {"out": np.zeros((1, 7, 6), np.float32)}
    figures = agreement((want, have))
    judged = replace(card, precision="int8", agreement=figures)
    assert "has another shape" in rejection(judged, 1.0)
    json.dumps(asdict(figures), allow_nan=False)


def test_the_gate(card):
    """`rejection` with figures at the border of what is asked for."""
    figures = replace(card.agreement, detections=20, missed=3, extra=2, output_error=0.1)
    for precision, least in MIN_QUALITY.items():
        judged = replace(card, precision=precision, agreement=replace(figures, quality=least))
        assert rejection(judged, 0.01) is None
        judged = replace(judged, agreement=replace(figures, quality=least - 0.001))
        assert "of 20 detections, it misses 3 and adds 2" in rejection(judged, 0.01)
    blind = replace(card, precision="int8", agreement=replace(figures, detections=0, quality=1.0))
    assert "the source model detects nothing on the 3 images" in rejection(blind, 0.01)
    assert rejection(replace(blind, family=None), 0.01) is None
    assert rejection(replace(blind, precision="fp16"), 0.01) is None


def test_labels_decide_where_there_are_any(card):
    figures = replace(card.agreement, quality=0.1, output_error=0.1)
    before = Accuracy(9, 0.5, 0.6, {}, {})
    judged = replace(card, precision="int8", agreement=figures)
    for after, allowed in ((0.495, True), (0.51, True), (0.48, False), (float("nan"), False)):
        accuracy = {"fp32": before, "fp16": before, "int8": replace(before, map50_95=after)}
        reason = rejection(replace(judged, accuracy=accuracy), 0.01)
        assert (reason is None) == allowed
        assert reason is None or "mAP50-95 falls from 0.500" in reason


SEMANTIC, CLASS_MAP, DEPTH, SALIENCY = (
    FAMILIES[name] for name in ("semantic", "class-map", "depth", "u2net")
)


def map_agreement(head, *pairs):
    rows = np.zeros((1, 3, 8, 8), np.float32)
    samples = (
        (Sample(str(n), rows, {"out": want}), {"out": have}) for n, (want, have) in enumerate(pairs)
    )
    return measure(head.open(("out",), (8, 8)), samples)


def test_classes_share_the_cells_of_one_class():
    want = np.zeros((1, 8, 8), np.int64)
    have = want.copy()
    have[0, :2] = 3
    figures = map_agreement(CLASS_MAP, (want, want), (want, have))
    assert figures.shared == figures.quality == pytest.approx(1 - 0.25 / 2)
    assert figures.worst == (WorstImage("1", 0.75, 0.25),)
    assert figures.text("int8") == "maps agree 87.50% on 2 images"
    assert "87.50%" in figures.rows("int8").values()
    logits = np.zeros((1, 3, 8, 8), np.float32)
    logits[0, 1] = 1
    # Other scores of the same classes are no loss.
    assert map_agreement(SEMANTIC, (logits, 3 * logits)).shared == 1


def test_masks_and_depths_share_what_does_not_differ():
    want = np.zeros((1, 1, 8, 8), np.float32)
    want[..., :4] = 1
    have = want.copy()
    have[..., 1:4] = 0.9
    assert map_agreement(SALIENCY, (want, have)).shared == pytest.approx(1 - 0.1 * 3 / 8)
    assert map_agreement(DEPTH, (want + 1, have + 1)).shared == pytest.approx(1 - 0.1 * 3 / 8 / 1.5)
    assert map_agreement(DEPTH, (0 * want, have)).shared == 0
    assert map_agreement(DEPTH, (0 * want, 0 * have)).shared == 1
    head = SALIENCY.open(("out",), (8, 8))
    found = head.decode({"out": want}, 0, None)
    other = DEPTH.open(("out",), (8, 8)).decode({"out": want}, 0, None)
    assert found.similarity(other) is None


def test_int8_is_refused_by_what_the_maps_share(card):
    want = np.zeros((1, 8, 8), np.int64)
    have = want.copy()
    have[0, :2] = 3
    bad, good = (map_agreement(CLASS_MAP, (want, each)) for each in (have, want))
    engine = replace(card, family="class-map", precision="int8", accuracy={})
    assert "has an agreement of 0.750 with the source model" in rejection(
        replace(engine, agreement=bad), max_drop=0.02
    )
    assert rejection(replace(engine, agreement=good), max_drop=0.02) is None
