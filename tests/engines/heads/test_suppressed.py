"""Rows that a graph has suppressed or ranked itself, written by hand as exporters document them.

Each form writes boxes x1 y1 x2 y2 in pixels of the input, scores and class ids.
"""

from functools import cache, partial
from itertools import permutations

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

from fovea_engines.heads.end_to_end import read_order
from fovea_engines.heads.recognise import recognise
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel

SIDES = np.float32([WIDTH, HEIGHT] * 2)
WHOLE = {"boxes": np.float32(BOXES), "scores": np.float32(SCORES), "ids": np.array(CLASSES)}


def joined(*columns):
    return np.column_stack(columns).astype(np.float32)


def y_first(boxes):
    return boxes[:, [1, 0, 3, 2]]


def centred(boxes):
    return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], axis=1)


def rows(boxes, scores, ids):
    return {"output0": filled(joined(boxes, scores, ids), 300)}


def rows_of_fractions(boxes, scores, ids):
    return {"output0": filled(joined(centred(boxes) / SIDES, scores, ids), 300)}


def a_column_for_each_class(boxes, scores, ids):
    table = np.random.default_rng(0).uniform(0.001, 0.02, (1, 300, 14)).astype(np.float32)
    table[0, :, :4] = [0.3, 0.3, 0.1, 0.1] + 20 * table[0, :, :4]
    table[0, : len(boxes), :4] = centred(boxes) / SIDES
    table[0, np.arange(len(boxes)), 4 + np.int64(ids)] = scores
    return {"output0": table}


def numbered(boxes, scores, ids, name="output", score_first=True):
    last = (scores, ids) if score_first else (ids, scores)
    return {name: joined(np.zeros(len(boxes)), boxes, *last)}


def class_first(boxes, scores, ids, name="batchno_classid_score_x1y1x2y2"):
    return {name: joined(np.zeros(len(boxes)), ids, scores, boxes)}


def automl(boxes, scores, ids, name="detections:0"):
    return {name: joined(np.zeros(len(boxes)), y_first(boxes), scores, ids + 1)[None]}


def paddle(boxes, scores, ids, padding=0):
    table = np.concatenate([joined(ids, scores, boxes), np.full((padding, 6), -1, np.float32)])
    return {"tmp_0": table, "tmp_2": np.array([len(table)], np.int32)}


def mmdeploy(boxes, scores, ids, names=("dets", "labels"), padding=0):
    labels = np.full((1, 4), padding)
    labels[0, : len(ids)] = ids
    return dict(zip(names, (filled(joined(boxes, scores), 4), labels), strict=True))


def torchvision(boxes, scores, ids, order=("boxes", "labels", "scores")):
    found = {"boxes": boxes, "labels": np.int64(ids), "scores": np.float32(scores)}
    return {name: found[name] for name in order}


def rtdetr(boxes, scores, ids, order=("labels", "boxes", "scores"), whole=np.int64):
    parts = {"boxes": (boxes, np.float32), "scores": (scores, np.float32), "labels": (ids, whole)}
    return {name: filled(parts[name][0], 300, parts[name][1]) for name in order}


def yolov3(boxes, scores, ids, tiny=False):
    """As in the ONNX model zoo: boxes and scores of all, and image, class and box of those kept."""
    table = np.full((1, 80, 5), 0.01, np.float32)
    table[0, np.int64(ids), 1 + np.arange(len(ids))] = scores
    kept = np.array([[0, id_, 1 + at] for at, id_ in enumerate(ids)], np.int32).reshape(-1, 3)
    boxes = np.concatenate(
        [np.ones((1, 4)), y_first(np.asarray(boxes)), np.ones((4 - len(ids), 4))]
    )
    tables = boxes[None].astype(np.float32), table, kept[None] if tiny else kept
    return dict(zip((f"yolonms_layer_1{end}" for end in ("", ":1", ":2")), tables, strict=True))


NVIDIA = ("num_dets", "det_boxes", "det_scores", "det_classes")
API = ("num_detections", "detection_boxes", "detection_scores", "detection_classes")
TFLITE = [f"TFLite_Detection_PostProcess{part}" for part in (":3", "", ":2", ":1")]
SUPER = [f"graph2_{n}" for n in ("num_predictions", "pred_boxes", "pred_scores", "pred_classes")]
IDENTITIES = ("Identity_5", "Identity_1", "Identity_4", "Identity_2")


def four(boxes, scores, ids, names=NVIDIA, count=2, whole=np.int32):
    """Five rows; a third that is sure follows, and `count` are counted."""
    boxes = filled([*np.asarray(boxes).tolist(), [1, 2, 30, 40]], 5)
    scores = filled([*scores, 0.75], 5)
    tables = np.array([[count]], whole), boxes, scores, filled([*ids, 1], 5, whole)
    return dict(zip(names, tables, strict=True))


def tensorflow(boxes, scores, ids, names=API, first=1, count=2, whole=np.float32):
    outputs = four(y_first(boxes / SIDES), scores, np.add(ids, first), names, count, whole)
    outputs[names[0]] = np.array([count], whole)
    if "Identity_5" in names:
        for name, columns in (("Identity", ()), ("Identity_3", (91,)), ("Identity_6", (4,))):
            outputs[name] = np.zeros((1, 5, *columns), np.float32)
    return outputs


FORMS = {
    "rows": (rows, "yolov10"),
    "rows of fractions": (rows_of_fractions, "ultralytics-rtdetr"),
    "a column for each class": (a_column_for_each_class, "ultralytics-rtdetr-raw"),
    "YOLO-NAS": (numbered, "yolonas-flat"),
    "YOLOv7": (partial(numbered, score_first=False), "yolov7-end2end"),
    "YOLOv7 by another's name": (
        partial(numbered, name="graph2_flat_predictions", score_first=False), "yolov7-end2end"
    ),
    "class first": (class_first, "class-first-rows"),
    "EfficientDet": (automl, "automl-efficientdet"),
    "PaddleDetection": (paddle, "paddle"),
    "PaddleDetection, padded": (partial(paddle, padding=3), "paddle"),
    "YOLOv3": (yolov3, "yolov3-nms"),
    "tiny YOLOv3": (partial(yolov3, tiny=True), "yolov3-nms"),
    "MMDeploy": (mmdeploy, "mmdeploy"),
    "MMDeploy, padded with no class": (partial(mmdeploy, padding=-1), "mmdeploy"),
    "MMDeploy, renamed": (partial(mmdeploy, names="ab"), "mmdeploy"),
    **{
        f"torchvision {'-'.join(order)}": (partial(torchvision, order=order), "torchvision")
        for order in permutations(("boxes", "labels", "scores"))
    },
    "RT-DETR": (rtdetr, "rtdetr"),
    "RT-DETR, reversed, of int32": (
        partial(rtdetr, order=("scores", "boxes", "labels"), whole=np.int32), "rtdetr"
    ),
    **{
        f"EfficientNMS {names[1]}, {whole.__name__}": (
            partial(four, names=names, whole=whole), "efficientnms"
        )
        for names in (NVIDIA, ("num_dets", "bboxes", "scores", "labels"), SUPER, API, "abcd")
        for whole in (np.int32, np.int64)
    },
    "EfficientNMS of floats": (partial(four, names=API, whole=np.float32), "efficientnms"),
    "TensorFlow": (tensorflow, "tf-detection"),
    "TensorFlow :0": (partial(tensorflow, names=[f"{n}:0" for n in API]), "tf-detection"),
    "TensorFlow by tf2onnx": (partial(tensorflow, names=IDENTITIES), "tf-detection"),
    "TFLite": (partial(tensorflow, names=TFLITE, first=0), "tflite-detection"),
}  # fmt: skip


# One of each; the others differ in names and orders.
EACH = (
    "rows", "rows of fractions", "a column for each class", "YOLO-NAS", "YOLOv7", "class first",
    "EfficientDet", "PaddleDetection", "MMDeploy", "RT-DETR", "torchvision boxes-labels-scores",
    "EfficientNMS of floats", "TensorFlow", "TFLite",
)  # fmt: skip
OF_FRACTIONS = {"rows of fractions", "a column for each class", "TensorFlow", "TFLite"}
OF_CENTRES = {"rows of fractions", "a column for each class"}
OF_WHOLE_IDS = {"MMDeploy", "RT-DETR", "a column for each class"} | {
    name for name in FORMS if name.startswith("torchvision")
}


@cache
def head_of(form):
    return opened(told(FORMS[form][0](**WHOLE)))


@pytest.mark.parametrize("form", FORMS)
def test_objects_are_found_as_they_were_written(form):
    write, family = FORMS[form]
    outputs = write(**WHOLE)
    recognition = told(outputs)
    assert recognition.family == family
    head = opened(recognition)
    assert head.contradiction(outputs) is None
    assert_found(head.decode(outputs, 0, PredictOptions()))
    best = head.decode(outputs, 0, PredictOptions(conf=0.6, classes=(2, 7)))
    assert best.class_ids.tolist() == [2]
    assert len(head.decode(outputs, 0, PredictOptions(conf=0.95))) == 0


WRONG = {
    "scores over 1": ({"scores": WHOLE["scores"] * 9}, "not a probability"),
    "scores under 0": ({"scores": WHOLE["scores"] - 3}, "not a probability"),
    "ids under 0": ({"ids": WHOLE["ids"] - 5}, "not contain class ids"),
    "ids between": ({"ids": WHOLE["ids"] + 0.5}, "not contain class ids"),
    "corners swapped": ({"boxes": WHOLE["boxes"][:, [2, 3, 0, 1]]}, "not corners"),
    "y first": ({"boxes": y_first(WHOLE["boxes"])}, "if x and y are swapped"),
    "fractions": ({"boxes": WHOLE["boxes"] / SIDES}, "boxes are not in pixels"),
    "pixels": ({"boxes": WHOLE["boxes"] * SIDES}, "not fractions of the image"),
}


def is_possible(form, wrong):
    if form == "a column for each class":
        return wrong == "pixels" or wrong.startswith("scores")
    if wrong == "pixels":
        return form in OF_FRACTIONS
    if wrong in ("y first", "fractions"):
        return form not in OF_FRACTIONS
    if wrong == "corners swapped":
        return form not in OF_CENTRES
    return wrong != "ids between" or form not in OF_WHOLE_IDS


@pytest.mark.parametrize(
    ("form", "wrong"), [(f, w) for f in EACH for w in WRONG if is_possible(f, w)]
)
def test_other_numbers_exclude_the_family(form, wrong):
    write, family = FORMS[form]
    change, says = WRONG[wrong]
    outputs = write(**WHOLE | change)
    assert says in head_of(form).contradiction(outputs)
    assert told(outputs).family != family


@pytest.mark.parametrize("form", EACH)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_broken_rows_are_dropped_and_harm_no_other(form, bad):
    write, _ = FORMS[form]
    head = head_of(form)
    broken = {key: WHOLE[key].copy() for key in ("boxes", "scores")}
    broken["boxes"][0, 2] = bad
    assert_second(head.decode(write(**WHOLE | {"boxes": broken["boxes"]}), 0, PredictOptions()))
    if bad != 3e38:
        broken["scores"][0] = bad
        found = head.decode(write(**WHOLE | {"scores": broken["scores"]}), 0, PredictOptions())
        assert np.isfinite(found.scores).all()
        assert found.class_ids.tolist()[-1] == CLASSES[1]


def assert_second(found):
    assert found.boxes == pytest.approx(np.array(BOXES[1:]), abs=0.01)
    assert found.class_ids.tolist() == CLASSES[1:]


@pytest.mark.parametrize("form", EACH)
def test_padding_and_boxes_without_a_width_are_no_objects_and_exclude_nothing(form):
    write, _ = FORMS[form]
    outputs, head = write(**WHOLE), head_of(form)
    assert head.has_evidence(outputs)
    thin = WHOLE["boxes"][:, [0, 1, 0, 3]]
    assert head.contradiction(write(**WHOLE | {"boxes": thin})) is None
    assert len(head.decode(write(**WHOLE | {"boxes": thin}), 0, PredictOptions())) == 0
    zeros = {name: array * 0 for name, array in outputs.items()}
    assert head.contradiction(zeros) is None
    assert len(head.decode(zeros, 0, PredictOptions())) == 0


@pytest.mark.parametrize(
    "form", [n for n in EACH if n not in ("YOLO-NAS", "YOLOv7", "class first")]
)
def test_rows_of_half_precision_and_of_another_image_of_the_batch(form):
    outputs, head = FORMS[form][0](**WHOLE), head_of(form)
    both = {name: np.concatenate([array * 0, array]) for name, array in outputs.items()}
    if form == "PaddleDetection":  # The rows of all images in one table.
        both = outputs | {"tmp_2": np.array([0, 2], np.int32)}
    if not form.startswith("torchvision"):
        assert_found(head.decode(both, 1, PredictOptions()))
        assert len(head.decode(both, 0, PredictOptions())) == 0
    halves = {n: a.astype(np.float16) if a.dtype == np.float32 else a for n, a in outputs.items()}
    found = head.decode(halves, 0, PredictOptions())
    assert found.boxes == pytest.approx(np.array(BOXES), abs=0.5)
    assert found.class_ids.tolist() == CLASSES


def test_rows_of_the_other_images_are_left_out():
    table = numbered(**WHOLE)["output"]
    head = opened(told({"output": table}))
    both = np.concatenate([table[1:] + np.float32([1, *[0] * 6]), table])
    assert_found(head.decode({"output": both}, 0, PredictOptions()))
    assert_second(head.decode({"output": both}, 1, PredictOptions()))
    counted = paddle(**WHOLE)["tmp_0"]
    both = {"tmp_0": np.concatenate([counted[1:], counted]), "tmp_2": np.array([1, 2], np.int32)}
    head = opened(told(paddle(**WHOLE)))
    assert_second(head.decode(both, 0, PredictOptions()))
    assert_found(head.decode(both, 1, PredictOptions()))


def test_no_rows_are_open_between_the_families_of_their_columns():
    empty = {"output": np.zeros((0, 7), np.float32)}
    assert told(empty).open == ("yolov7-end2end", "yolonas-flat")
    named = opened(told(empty, family="yolov7-end2end"))
    assert len(named.decode(empty, 0, PredictOptions())) == 0
    nothing = {"boxes": np.zeros((0, 4), np.float32), "scores": [], "ids": np.zeros(0, int)}
    for write in (mmdeploy, torchvision, paddle):
        head = opened(told(write(**WHOLE)))
        assert head.contradiction(write(**nothing)) is None
        assert len(head.decode(write(**nothing), 0, PredictOptions(conf=0))) == 0


def test_of_seven_columns_whole_numbers_are_the_classes():
    for score_first, family, other in (
        (True, "yolonas-flat", "yolov7-end2end"),
        (False, "yolov7-end2end", "yolonas-flat"),
    ):
        recognition = told(numbered(**WHOLE, score_first=score_first))
        assert excluded(recognition, other)
        one_class = numbered(**WHOLE | {"ids": np.zeros(2)}, score_first=score_first)
        assert told(one_class).family == family
    moved = numbered(**WHOLE)["output"] + np.float32([20, *[0] * 6])
    assert "column 0 must be the image index 0" in told({"output": moved}).reason


def test_what_ranks_the_rows_is_no_side_of_a_box():
    """Scores in percent, in the place of a left side, of ten rows."""
    sides = np.linspace(90, 10, 10)
    boxes = np.column_stack([sides, sides[::-1] % 17, sides + 100, sides[::-1] % 17 + 200])
    table = joined(boxes, np.linspace(0.9, 0.3, 10), np.arange(10))
    assert "sorted in descending order" in opened(told(rows(**WHOLE))).contradiction(
        {"output0": table[None]}
    )


@pytest.mark.parametrize("count", [-1, 0, 1, 2, 3, 9, np.nan, np.inf, -np.inf])
def test_no_more_rows_than_are_counted(count):
    head = opened(told(four(**WHOLE)))
    outputs = four(**WHOLE) | {"num_dets": np.array([[count]])}
    expected = 3 if count > 3 else max(np.nan_to_num(count), 0)
    assert len(head.decode(outputs, 0, PredictOptions())) == expected
    assert (head.contradiction(outputs) is None) == (not (count < 0 or count > 5))


def test_the_first_class_is_told_by_names_or_asked_for():
    from_zero = tensorflow(**WHOLE, first=-2)
    recognition = told(from_zero)
    assert recognition.family == "tflite-detection"
    assert "has class 0, but the first class is 1" in excluded(recognition, "tf-detection")
    assert opened(recognition).decode(from_zero, 0, PredictOptions()).class_ids.tolist() == [0, 5]
    unnamed = tensorflow(**WHOLE, names="dacb")
    unnamed = {name: unnamed[name] for name in "abcd"}
    both = ("tf-detection", "tflite-detection")
    assert told(unnamed).open == told(tensorflow(**WHOLE, whole=np.int32)).open == both
    head = opened(told(unnamed, family="tf-detection"))
    assert_found(head.decode(unnamed, 0, PredictOptions()))
    below = automl(**WHOLE | {"ids": WHOLE["ids"] - 3})
    assert "the first class is 1" in told(below).reason


def test_fractions_need_the_size_of_the_input():
    recognition = told(tensorflow(**WHOLE), size=(-1, -1))
    assert recognition.family == "tf-detection"
    with pytest.raises(UnsupportedModel, match="--size"):
        opened(recognition, None)


@pytest.mark.parametrize(
    "outputs",
    [
        four(**WHOLE) | {"masks": np.zeros((1, 5, 8, 8), np.float32)},
        four(**WHOLE) | {"det_boxes": np.zeros((1, 5, 5), np.float32)},
        mmdeploy(**WHOLE) | {"labels": np.zeros((1, 4, 80), np.float32)},
        automl(**WHOLE, name="output"),
        rtdetr(**WHOLE, whole=np.float32),
    ],
    ids=["masks", "boxes of five", "logits", "no name", "float labels"],
)
def test_other_outputs_are_none_of_these_families(outputs):
    assert told(outputs).family is None


def test_lines_of_character_name_the_classes():
    assert told(paddle(**WHOLE), {"character": "a\nb\nc"}).num_classes == 3


def test_numbers_that_are_none_are_seen_in_rows_that_are_read():
    """Plugins leave rows undefined behind those that they count, and give padding no score."""
    found = rows(**WHOLE)
    head = opened(told(found))
    table = found["output0"]
    table[0, 2] = [*[np.nan] * 4, 0, 0]
    table[0, 3] = [*[0] * 4, -np.inf, 0]
    assert head.unsound(found, 0) is None
    assert head.unsound({"output0": table * np.nan}, 0) == "output output0"
    counted = four(**WHOLE)
    head = opened(told(counted))
    for name in ("det_boxes", "det_scores"):
        counted[name][0, 2:] = np.nan
    assert head.unsound(counted, 0) is None
    assert head.unsound(counted | {"num_dets": np.array([[3.0]])}, 0) == "output det_boxes"
    assert head.unsound(counted | {"num_dets": np.array([[np.nan]])}, 0) == "output num_dets"
    assert head.unsound(counted | {"det_scores": counted["det_scores"] * np.nan}, 0) == "det_scores"


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("batchno_classid_score_x1y1x2y2", "image, class, score, x1 y1 x2 y2"),
        ("batchno_classid_x1y1x2y2_score", "image, class, x1 y1 x2 y2, score"),
        ("batch_id_xyxy_cls_conf", "image, x1 y1 x2 y2, class, score"),
        ("image_yxyx_score_label", "image, y1 x1 y2 x2, score, class"),
        ("output", None),
        ("scores", None),
        ("batchno_classid_score", None),
        ("batchno_classid_score_x1y1x2y2_landms", None),
    ],
)
def test_a_name_says_the_columns(name, columns):
    assert read_order(name) == columns


@pytest.mark.parametrize(
    ("shape", "metadata", "family", "classes"),
    [
        ((300, 84), {}, "ultralytics-rtdetr-raw", 80),
        ((300, 84), {"names": str(["a"] * 80)}, "ultralytics-rtdetr-raw", 80),
        ((300, 6), {"head": "RTDETRDecoder", "names": str(["a"] * 80)}, "ultralytics-rtdetr", 80),
        ((300, 6), {"head": "v10Detect"}, "yolov10", None),
        ((300, 6), {}, "yolov10", None),
        ((300, 84), {"names": "['a']"}, None, None),
        ((5000, 84), {"head": "RTDETRDecoder"}, None, None),
    ],
)
def test_shapes_and_metadata_of_ultralytics(shape, metadata, family, classes):
    image = [TensorSpec("images", "float32", (-1, 3, 640, 640))]
    found = recognise(image, [TensorSpec("output0", "float32", (-1, *shape))], metadata)
    assert (found.family, found.num_classes) == (family, classes)
