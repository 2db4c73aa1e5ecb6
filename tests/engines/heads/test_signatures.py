"""Every signature that exporters write is decoded, or left as tensors with the reason.

Each row has what a model takes, what it computes for one image (`exports`), and its metadata, and
then its family or a part of the reason. A family must find the planted object. Rows that a graph
has suppressed are in `test_suppressed`.
"""

import numpy as np
import pytest
from tests.engines.heads import exports as made
from tests.engines.heads.exports import BOX, CLASS, QUERIES, SCORE, one, random

from fovea_engines.heads.image_inputs import SIZE_INPUTS
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.heads.suppressed import Suppressed
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel


def image(*sides, dtype="float32", name="images"):
    height, width = sides or (640, 640)
    return TensorSpec(name, dtype, (-1, 3, height, width))


def names(count):
    return {"names": str({i: f"class {i}" for i in range(count)})}


MASK = TensorSpec("pixel_mask", "int64", (-1, 64, 64))
WHOLE = TensorSpec("input", "int32", (1, 640, 640, 3))
MEDIAPIPE = TensorSpec("input", "float32", (1, 128, 128, 3))

ANYTHING = "fits many kinds of models"
PERSON = {"kpt_shape": "[17, 3]"}
CALLED = {"task": "detect", "names": names(80)["names"]}
TABLE = {
    "RF-DETR of COCO": ((image(name="input"),), lambda: made.rfdetr(91), {}, "rfdetr"),
    "RF-DETR fine-tuned": ((image(),), lambda: made.rfdetr(81), {}, "do not show which of them"),
    "RF-DETR fine-tuned, named": (
        (image(),), lambda: made.rfdetr(81), names(80), "rfdetr-background-last"
    ),
    "RF-DETR with masks": ((image(),), made.rfdetr_masks, {}, "rfdetr-seg"),
    "RF-DETR by LibreYOLO": (
        (image(),), lambda: made.rfdetr(91), {"model_family": "rfdetr", **names(80)}, "rfdetr"
    ),
    "D-FINE with masks by LibreYOLO": (
        (image(),), lambda: made.raw_detr() | {"pred_masks": random(1, QUERIES, 160, 160)},
        {"model_family": "dfine", "task": "segment", **names(80)}, "rtdetr-raw-seg",
    ),
    "D-FINE with masks, stripped": (
        (image(),), lambda: made.raw_detr() | {"pred_masks": random(1, QUERIES, 160, 160)}, {},
        "rtdetr-raw-seg",
    ),
    "D-FINE with the names of RF-DETR": (
        (image(),), made.rfdetr_masks, {"model_family": "dfine"}, "names the family dfine"
    ),
    "RT-DETR of Hugging Face": (
        (image(name="pixel_values"),), lambda: made.raw_detr("logits"), {}, "rtdetr-raw"
    ),
    "DETR, YOLOS of Hugging Face": ((image(name="pixel_values"), MASK), made.detr, {}, "detr"),
    "DETR after LogSoftmax": ((image(),), lambda: made.detr(log_softmax=True), {}, "detr"),
    "DETRs by LibreYOLO": (
        (image(),), made.raw_detr, {"model_family": "dfine", **names(80)}, "rtdetr-raw"
    ),
    "Ultralytics RT-DETR to 8.3": (
        (image(),), made.ultralytics_rtdetr, {}, "ultralytics-rtdetr-raw"
    ),
    "PP-YOLOE raw": ((image(),), lambda: made.boxes_and_scores(transposed=True), {}, "ppyoloe"),
    "DAMO-YOLO": (
        (image(),), lambda: made.boxes_and_scores(boxes_first=False), {}, "ppyoloe and damo-yolo"
    ),
    "YOLO-NAS raw": ((image(),), made.boxes_and_scores, {}, "yolo-nas, ppyoloe and damo-yolo"),
    "YOLO-NAS by LibreYOLO": (
        (image(),), made.boxes_and_scores, {"model_family": "yolonas"}, "yolo-nas"
    ),
    "YOLOv6": ((image(),), made.yolov6, {}, "yolov6"),
    "YOLOX": ((image(),), lambda: made.yolox(made.offsets), {}, "yolox"),
    "YOLOX decoded": ((image(),), lambda: made.yolox(made.centred), {}, "yolox-decoded"),
    "YOLOv5, v7": ((image(),), made.yolov5, {}, "yolov5"),
    "YOLOv5, v7 without grid": ((image(),), made.raw_levels, {}, "yolov5-raw and yolov7-raw"),
    "YOLOv5 without grid, with anchors": (
        (image(),), made.raw_levels, {"anchors": str(FAMILIES["yolov5-raw"].anchors)}, "yolov5-raw"
    ),
    "YOLOv8, 11, 12, World, YOLOE": ((image(),), made.yolov8, CALLED, "yolov8"),
    "YOLOv8, stripped": ((image(),), made.yolov8, {}, "yolov8"),
    "YOLOv9 by LibreYOLO": (
        (image(),), lambda: made.yolov8(made.corners), {"model_family": "yolo9"}, "libreyolo-yolo9"
    ),
    "segment v8, 11, 12": ((image(),), made.segmenter, {}, "yolov8-seg"),
    "segment 26": ((image(),), made.segmenter_rows, {}, "yolov10-seg"),
    "pose v8, 11": ((image(),), made.pose, PERSON, "yolov8-pose"),
    "pose v8, 11, stripped": ((image(),), made.pose, {}, "yolov8-pose"),
    "pose 26": ((image(),), made.pose_rows, PERSON, "yolov10-pose"),
    "pose 26, stripped": ((image(),), made.pose_rows, {}, "yolov10-pose"),
    "pose 26, fractions": (
        (image(),), lambda: made.pose_rows(lambda points: points / [640, 640, 1]), PERSON,
        "keypoints are not in pixels",
    ),
    "pose 26, percent": (
        (image(),), lambda: made.pose_rows(lambda points: points * [1, 1, 100]), PERSON,
        "a keypoint's score is not a probability",
    ),
    "pose 26, all x before all y": (
        (image(),), lambda: made.pose_rows(lambda points: points.swapaxes(1, 2)), PERSON,
        "a keypoint's score is not a probability",
    ),
    "rotated v8, 11": ((image(),), made.rotated, {"task": "obb"}, "yolov8-obb"),
    "rotated v8, 11, stripped": ((image(),), made.rotated, {}, "yolov8-obb"),
    "rotated 26": ((image(),), made.rotated_rows, {"task": "obb"}, "yolov10-obb"),
    "classify": ((image(224, 224),), made.classes, {"task": "classify"}, "yolo-classifier"),
    "classify, stripped": ((image(224, 224),), made.classes, {}, "classifier"),
    "semantic 26": ((image(),), made.class_map, {"task": "semantic"}, "class-map"),
    "semantic 26, stripped": ((image(),), made.class_map, {}, "class-map"),
    "semantic 26, logits": (
        (image(),), lambda: one(random(1, 19, 640, 640, low=-9)), {"task": "semantic"}, "semantic"
    ),
    "SegFormer of Hugging Face": (
        (image(),), lambda: {"logits": random(1, 19, 160, 160, low=-9)}, {}, "semantic"
    ),
    "depth 26": (
        (image(),), lambda: one(made.depth()[None]), {"task": "depth", "head": "Depth"},
        "yolo-depth",
    ),
    "depth 26, stripped": ((image(),), lambda: one(made.depth()[None]), {}, ANYTHING),
    "NanoDet-Plus": ((image(name="data"),), made.nanodet_plus, {}, "nanodet-plus"),
    "NanoDet in one tensor": ((image(name="data"),), made.nanodet_joined, {}, "nanodet-joined"),
    "PicoDet, GFL raw": ((image(),), made.picodet, {}, "picodet-raw"),
    "CenterNet": ((image(),), made.centernet, {}, "centernet"),
    "CenterFace": ((image(),), made.centerface, {}, "centerface"),
    "YuNet 2023": ((image(),), made.yunet, {}, "yunet"),
    "SCRFD": ((image(name="input.1"),), made.scrfd, {}, "scrfd"),
    "RetinaFace": ((image(),), made.retinaface, {}, "retinaface"),
    "RetinaFace of 1 MB": ((image(),), lambda: made.retinaface(128), {}, "retinaface-1mb"),
    "RetinaFace of plates": ((image(),), lambda: made.retinaface(points=4), {}, "retinaface-plate"),
    "RetinaFace of larger plates": (
        (image(),), lambda: made.retinaface(192 * 2, points=4), {}, "retinaface-plate-large"
    ),
    "RetinaFace of priors of one's own": (
        (image(),), lambda: made.retinaface(400), {}, "moves by 0.36 cells"
    ),
    "YOLOv5-face": ((image(),), made.yolov5_face, {}, "yolov5-face"),
    "UltraFace": ((image(240, 320),), made.ultraface, {}, "ultraface"),
    "BlazeFace": ((MEDIAPIPE,), made.blazeface, {}, "blazeface"),
    "palm detector": ((MEDIAPIPE,), lambda: made.mediapipe(2016, 18), {}, "no family"),
    "MoveNet": ((WHOLE,), made.movenet, {}, "movenet"),
    "MoveNet multipose": ((WHOLE,), lambda: made.movenet(6), {}, "movenet-multipose"),
    "PP-OCR det": ((image(name="x"),), made.text_map, {}, ANYTHING),
    "PP-OCR det, told": ((image(name="x"),), made.text_map, {"task": "text"}, "ppocr-det"),
    "PP-OCR rec": (
        (image(48, 320),), lambda: one(made.shares(40, 97)[None]), {}, "at least 100 queries"
    ),
    "PP-OCR rec of wide lines": (
        (image(48, 960),), lambda: one(made.shares(120, 97)[None]), {}, "all columns add up to 1"
    ),
    "PP-OCR rec with its dictionary": (
        (image(48, 320),), lambda: one(made.shares(40, 97)[None]),
        {"character": "\n".join(map(chr, range(97, 192)))}, "ctc"
    ),
    "PP-OCR cls": ((image(48, 192),), lambda: one(made.shares(1, 2)), {}, "classifier"),
    "Depth Anything": (
        (image(518, 518),), lambda: {"predicted_depth": made.depth(518, 518)}, {}, "depth"
    ),
    "MiDaS": ((image(256, 256),), lambda: one(made.depth(256, 256)), {}, ANYTHING),
    "what stands out": (
        (image(320, 320),), lambda: one(made.soft_map(320, 320)[None]), {}, ANYTHING
    ),
    "what stands out, smaller": (
        (image(640, 640),), lambda: one(made.soft_map(320, 320)[None]), {}, "four numbers differ"
    ),
    "SAM's encoder": (
        (image(1024, 1024),),
        lambda: {"image_embeddings": random(1, 256, 64, 64, low=-1)}, {}, ANYTHING,
    ),
    "SAM's decoder": (
        tuple(TensorSpec(name, "float32", (1, 256, 64, 64))
              for name in ("image_embeddings", "point_coords")),
        lambda: {"masks": random(1, 4, 64, 64), "iou_predictions": random(1, 4)}, {},
        "needs one batch of colour images",
    ),
}  # fmt: skip


def recognised(row, **more):
    inputs, compute, metadata, _ = TABLE[row]
    outputs = compute()
    specs = [TensorSpec(n, str(a.dtype), (-1, *a.shape[1:])) for n, a in outputs.items()]
    # As a build does, which fills in the others.
    fed = [spec for spec in inputs if spec.name not in SIZE_INPUTS]
    told = recognise(fed, specs, metadata, observe=lambda _: [outputs], **more)
    return told, open_head(told, fed), outputs


@pytest.mark.parametrize("row", TABLE)
def test_it_is_decoded_or_left_as_tensors_with_the_reason(row):
    expected = TABLE[row][3]
    told, head, outputs = recognised(row)
    if expected not in FAMILIES:
        assert told.family is None
        against = [verdict.against for verdict in told.verdicts if verdict.against]
        assert any(expected in reason for reason in (told.reason, *against))
        return
    assert told.family == expected, told.reason
    assert head.unsound(outputs, 0) is None
    found = head.decode(outputs, 0, PredictOptions())
    face = head.labels == ("face",) or told.num_classes == 1
    if head.task == "classify":
        assert found.class_ids[0] == min(CLASS, told.num_classes - 1)
    if head.task not in ("detect", "segment", "pose", "obb", "text"):
        return
    smaller = {"UltraFace": 2, "BlazeFace": 5}.get(row, 1)
    assert found.boxes == pytest.approx(BOX[None] / smaller, abs=0.01)
    assert found.class_ids.tolist() == [0 if face and "pose 26" not in row else CLASS]
    assert found.scores == pytest.approx([SCORE], abs=0.02)
    if head.task != "text":
        assert_options_are_kept(head, outputs)
        assert_other_arrays_give_the_same(head, outputs, found)
        assert_broken_numbers_give_no_boxes(head, outputs)


def assert_options_are_kept(head, outputs):
    def count(**options):
        return len(head.decode(outputs, 0, PredictOptions(**options)))

    assert count(conf=0.95) == count(classes=()) == count(classes=(CLASS + 1,)) == 0
    assert count(conf=0, max_det=1) == 1
    every = head.decode(outputs, 0, PredictOptions(conf=0.001))
    assert (np.diff(every.scores) <= 0).all()


def assert_other_arrays_give_the_same(head, outputs, found):
    """Half precision, and the second row of a batch."""
    halves = {n: a.astype(np.float16) if a.dtype == np.float32 else a for n, a in outputs.items()}
    rounded = head.decode(halves, 0, PredictOptions())
    assert rounded.boxes == pytest.approx(found.boxes, abs=2)
    assert rounded.scores == pytest.approx(found.scores, abs=0.01)
    two = {name: np.concatenate([array * 0, array]) for name, array in outputs.items()}
    within = head.decode(two, 1, PredictOptions())
    assert within.boxes.tolist() == found.boxes.tolist()
    assert within.scores.tolist() == found.scores.tolist()


def assert_broken_numbers_give_no_boxes(head, outputs):
    floats = [name for name in head.outputs if outputs[name].dtype.kind == "f"]
    sprinkled = outputs | {name: outputs[name].copy() for name in floats}
    for number, bad in enumerate((np.nan, np.inf, -np.inf)):
        broken = outputs | {name: np.full_like(outputs[name], bad) for name in floats}
        # The sigmoid of infinity is 1.
        if (head.family, bad) != ("yolov5-raw", np.inf):
            assert len(head.decode(broken, 0, PredictOptions(conf=0))) == 0
        for name in floats:
            sprinkled[name].reshape(-1)[number::2999] = bad
    few = head.decode(sprinkled, 0, PredictOptions(conf=0.001))
    assert np.isfinite(few.boxes).all()
    assert ((few.scores >= 0) & (few.scores <= 1)).all()
    # Of ranked rows only those that are no padding are read.
    ranked = isinstance(head, Suppressed)
    for name in floats:
        array = outputs[name].copy()
        array.reshape(-1)[: array.shape[-1] * (10 if ranked else 1)] = np.nan
        assert head.unsound(outputs | {name: array}, 0) is not None, name


EXCLUDED = [
    ("YOLOv8, stripped", "output0", lambda a: a[:, [1, 0, 3, 2, *range(4, 84)]], "1 is an x "),
    ("PP-YOLOE raw", "boxes", lambda a: a / 640, "boxes are not in pixels"),
    ("PP-YOLOE raw", "boxes", lambda a: a[..., [2, 3, 0, 1]], "boxes are not corners"),
    ("PP-YOLOE raw", "boxes", lambda a: a[..., [1, 0, 3, 2]], "column 1 is an x coordinate"),
    (
        "PP-YOLOE raw", "boxes",
        lambda a: np.concatenate([a[..., :2], a[..., 2:] - a[..., :2]], axis=2), "column 2 is not",
    ),
    ("PP-YOLOE raw", "scores", lambda a: a * 100, "not a probability"),
    (
        "NanoDet-Plus", "output",
        lambda a: np.concatenate([a[..., :80], np.exp(a[..., 80:])], axis=2), "not logits",
    ),
    ("NanoDet-Plus", "output", lambda a: a * 100, "not a probability"),
    ("YuNet 2023", "obj_8", lambda a: np.log(a), "not a probability"),
    ("SCRFD", "bbox_8", lambda a: a * 8, "not in strides"),
    ("SCRFD", "score_8", lambda a: np.log(a), "not a probability"),
    ("RetinaFace", "conf", lambda a: a * 0.5, "after a softmax the sum is 1"),
    ("RetinaFace", "conf", lambda a: np.log(a), "not a probability"),
    ("RetinaFace", "loc", lambda a: a * 300, "not logarithms"),
    (
        "RetinaFace", "loc",
        lambda a: np.linspace(0, 1, a.size // 2, dtype="f").repeat(2).reshape(a.shape),
        "not an offset in a cell",
    ),
    ("UltraFace", "boxes", lambda a: a * 320, "not fractions of the image"),
    ("UltraFace", "boxes", lambda a: a[..., [2, 3, 0, 1]], "not corners"),
    ("UltraFace", "scores", lambda a: a**2, "after a softmax the sum is 1"),
    ("CenterFace", "538", lambda a: np.exp(a) * 40, "not logarithms"),
    ("CenterFace", "539", lambda a: a * 100, "not offsets in cells"),
    ("CenterFace", "537", lambda a: a * 100, "not a probability"),
    ("YOLOv5-face", "output0", lambda a: a.clip(0, 1), "landmarks: boxes are not"),
    ("BlazeFace", "classificators", lambda a: 1 / (1 + np.exp(-a.clip(-50))), "not logits"),
    ("MoveNet", "output_0", lambda a: a * [192, 192, 1], "keypoints are not fractions"),
    ("MoveNet", "output_0", lambda a: a - [0, 0, 3], "not a probability"),
    ("MoveNet", "output_0", lambda a: a * [1, 1, 9], "not a probability"),
    (
        "Ultralytics RT-DETR to 8.3", "output0",
        lambda a: np.concatenate([a[..., :4], a[..., 4:] > 0.5], axis=2), "only whole numbers",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "output", "change", "says"), EXCLUDED, ids=[f"{c[0]}, {c[3]}" for c in EXCLUDED]
)
def test_other_numbers_exclude_the_family(row, output, change, says):
    named = {"PP-YOLOE raw": "ppyoloe"}.get(row, TABLE[row][3])
    _, head, outputs = recognised(row, family=named)
    assert head.contradiction(outputs) is None
    assert says in head.contradiction(outputs | {output: change(outputs[output])})


@pytest.mark.parametrize(
    ("row", "family", "says"),
    [
        ("rotated v8, 11, stripped", "yolov8", "contains angles of rotated boxes"),
        ("YOLOX decoded", "yolox", "not logarithms"),
        ("YOLOX decoded", "yolov6", "column 4 is always 1 in YOLOv6"),
        ("YOLOv6", "yolox", "not logarithms"),
        ("YOLOv6", "yolox-decoded", "column 4 is 1 for every box"),
        ("YOLOv5-face", "yolov5", "not a probability"),
        ("YOLOv9 by LibreYOLO", "yolov8", "column 2 is an x coordinate"),
    ],
)
def test_families_that_look_like_others_are_refused(row, family, says):
    with pytest.raises(UnsupportedModel, match=says):
        recognised(row, family=family)
