"""Boxes, scores, classes and a count as four tensors: pixels, or fractions y before x."""

import numpy as np
import pytest
from tests.engines.heads.by_hand import (
    BOXES,
    CLASSES,
    HEIGHT,
    SCORES,
    WIDTH,
    assert_found,
    excluded,
    filled,
    opened,
    told,
)
from tests.engines.heads.expected import File

from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import UnsupportedModel

pytestmark = pytest.mark.real

PIXELS = ("num_dets", "det_boxes", "det_scores", "det_classes")
API = ("num_detections", "detection_boxes", "detection_scores", "detection_classes")
TFLITE = [f"TFLite_Detection_PostProcess{part}" for part in (":3", "", ":2", ":1")]


def pixels(names=PIXELS, count=2, whole=np.int32):
    """Five rows, of which `count` are counted, and the others are no padding."""
    boxes = filled([*BOXES, [1, 2, 30, 40]], 5)
    scores = filled([*SCORES, 0.75], 5)
    classes = filled([*CLASSES, 1], 5, whole)
    return dict(zip(names, (np.array([[count]], whole), boxes, scores, classes), strict=True))


def fractions(names=API, first=1, count=2, whole=np.float32):
    outputs = pixels(names, count, whole)
    boxes = outputs[names[1]][..., [1, 0, 3, 2]] / np.float32([HEIGHT, WIDTH] * 2)
    outputs[names[0]] = np.array([count], whole)
    return outputs | {names[1]: boxes, names[3]: outputs[names[3]] + whole(first)}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("efficientnms", "efficientnms"),
        ("yolov6-end2end", "efficientnms"),
        ("tf-od", "tf-detection"),
    ],
)
def test_files(shared, name, family):
    file = File(shared, name)
    assert file.recognise().family == family
    file.assert_expected(family)


@pytest.mark.parametrize(
    "names",
    [
        PIXELS,
        ("num_dets", "bboxes", "scores", "labels"),
        tuple(
            f"graph2_{n}" for n in ("num_predictions", "pred_boxes", "pred_scores", "pred_classes")
        ),
        API,
        ("a", "b", "c", "d"),
    ],
    ids=lambda names: names[1],
)
@pytest.mark.parametrize("whole", [np.int32, np.int64])
def test_pixels_by_other_names(names, whole):
    outputs = pixels(names, whole=whole)
    recognition = told(outputs)
    assert recognition.family == "efficientnms"
    head = opened(recognition)
    assert_found(head.decode(outputs, 0, PredictOptions()))
    surer = head.decode(outputs, 0, PredictOptions(conf=0.6, classes=(2, 7)))
    assert surer.class_ids.tolist() == [2]


def test_no_more_rows_than_are_counted():
    for count, rows in ((0, 0), (1, 1), (2, 2), (3, 3), (-1, 0), (9, 3)):
        outputs = pixels(count=count)
        head = opened(told(pixels()))
        assert len(head.decode(outputs, 0, PredictOptions())) == rows
        assert (head.contradiction(outputs) is None) == (0 <= count <= 5)


@pytest.mark.parametrize(
    ("names", "first", "family"),
    [
        (API, 1, "tf-detection"),
        ([f"{name}:0" for name in API], 1, "tf-detection"),
        (("Identity_5", "Identity_1", "Identity_4", "Identity_2"), 1, "tf-detection"),
        (TFLITE, 0, "tflite-detection"),
    ],
    ids=["API", "API:0", "Identity", "TFLite"],
)
def test_fractions(names, first, family):
    outputs = fractions(names, first)
    if "Identity_5" in names:
        for name, columns in (("Identity", ()), ("Identity_3", (91,)), ("Identity_6", (4,))):
            outputs[name] = np.zeros((1, 5, *columns), np.float32)
    recognition = told(outputs)
    assert recognition.family == family
    assert_found(opened(recognition).decode(outputs, 0, PredictOptions()))


def test_class_0_is_not_of_the_api():
    outputs = fractions(first=-2)
    recognition = told(outputs)
    assert recognition.family == "tflite-detection"
    assert "has a class 0, and the first is 1" in excluded(recognition, "tf-detection")
    found = opened(recognition).decode(outputs, 0, PredictOptions())
    assert found.class_ids.tolist() == [0, 5]


def test_without_names_the_first_class_is_asked_for():
    outputs = fractions(("d", "a", "c", "b"))
    outputs = {name: outputs[name] for name in "abcd"}
    assert told(outputs).open == ("tf-detection", "tflite-detection")
    recognition = told(outputs, family="tf-detection")
    assert_found(opened(recognition).decode(outputs, 0, PredictOptions()))


def test_integers_by_the_names_of_the_api_may_be_fractions():
    assert told(fractions(whole=np.int32)).open == ("tf-detection", "tflite-detection")
    assert told(pixels(API, whole=np.float32)).family == "efficientnms"


@pytest.mark.parametrize("family", ["tf-detection", "efficientnms"])
def test_contradictions(family):
    right = {"tf-detection": fractions(), "efficientnms": pixels(API)}[family]
    head = opened(told(right))
    assert head.contradiction(right) is None
    count, boxes, scores, classes = API

    def reason(**changed):
        return head.contradiction(right | changed)

    swapped = reason(
        detection_scores=right[classes] * np.float32(1), detection_classes=right[scores]
    )
    assert swapped.startswith("detection_scores is no probability")
    whole = {scores: np.float32([[1, 1, 1, 1, 1]]), classes: right[scores]}
    assert reason(**whole).startswith("detection_classes holds no class ids")
    other = {"tf-detection": pixels(API), "efficientnms": fractions()}[family]
    assert "boxes are no " in reason(detection_boxes=other[boxes])
    backwards = right[boxes][..., [2, 3, 0, 1]]
    assert reason(detection_boxes=backwards).startswith("boxes are no corners")
    for nothing in (
        {count: right[count] * 0},
        {name: right[name] * 0 for name in (boxes, scores)},
        {name: np.full_like(right[name], np.nan) for name in (boxes, scores)},
    ):
        assert reason(**nothing) is None
        assert len(head.decode(right | nothing, 0, PredictOptions(conf=0))) in (0, 2)
    for broken in (np.nan, np.inf, -np.inf):
        counted = right | {count: np.full_like(right[count], broken, np.float32)}
        assert len(head.decode(counted, 0, PredictOptions())) == (3 if broken == np.inf else 0)
    far = right | {boxes: np.full_like(right[boxes], 3e38)}
    assert len(head.decode(far, 0, PredictOptions())) == 0
    nan = right | {scores: right[scores] * np.nan}
    assert len(head.decode(nan, 0, PredictOptions(conf=0))) == 0


def test_pixels_with_y_first_are_seen_where_the_input_is_no_square():
    outputs = pixels()
    outputs["det_boxes"] = outputs["det_boxes"][..., [1, 0, 3, 2]]
    assert "with x and y swapped none is" in told(outputs).reason


def test_a_dynamic_size_is_asked_for_where_boxes_are_fractions():
    recognition = told(fractions(), size=(-1, -1))
    assert recognition.family == "tf-detection"
    with pytest.raises(UnsupportedModel, match="--size"):
        opened(recognition, None)


def test_rows_of_a_batch_are_independent():
    one, other = pixels(), pixels(count=1)
    both = {name: np.concatenate([one[name], other[name]]) for name in one}
    head = opened(told(both))
    assert_found(head.decode(both, 0, PredictOptions()))
    assert head.decode(both, 1, PredictOptions()).class_ids.tolist() == CLASSES[:1]


def test_other_four_outputs_are_no_detections():
    outputs = pixels()
    assert told(outputs | {"masks": np.zeros((1, 5, 8, 8), np.float32)}).family is None
    assert told(outputs | {"det_boxes": np.zeros((1, 5, 5), np.float32)}).family is None
