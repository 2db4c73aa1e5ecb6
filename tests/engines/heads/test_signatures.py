"""Every signature that exporters write is decoded, or left as tensors with the reason.

Each row has what a model takes, what it computes for one image (`planted`), and its metadata, and
then its family or a part of the reason. A family must find the planted object.
"""

import pytest
from tests.engines.heads.exports import (
    automl,
    blazeface,
    boxes_and_scores,
    centerface,
    centernet,
    class_map,
    classes,
    depth,
    detr,
    flat_rows,
    four,
    mediapipe,
    mmdet,
    movenet,
    nanodet_plus,
    one,
    paddle,
    picodet,
    pose,
    pose_rows,
    raw_detr,
    raw_levels,
    retinaface,
    rfdetr,
    rfdetr_masks,
    rotated,
    rotated_rows,
    rtdetr,
    scrfd,
    segmenter,
    segmenter_rows,
    tensorflow,
    text_map,
    torchvision,
    ultraface,
    ultralytics_rtdetr_ranked,
    yolov3_nms,
    yolov5,
    yolov5_face,
    yolov6,
    yolov8,
    yolox,
    yunet,
)
from tests.engines.heads.planted import (
    BOX,
    CLASS,
    QUERIES,
    SCORE,
    centred,
    corners,
    joined,
    offsets,
    queries,
    random,
    ranked,
    shares,
    soft_map,
)

from fovea_engines.heads.image_inputs import SIZE_INPUTS
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec


def image(*sides, dtype="float32", name="images"):
    height, width = sides or (640, 640)
    return TensorSpec(name, dtype, (-1, 3, height, width))


def bytes_image(height=640, width=640):
    return TensorSpec("image", "uint8", (-1, height, width, 3))


def names(count):
    return {"names": str({i: f"class {i}" for i in range(count)})}


SIZES = TensorSpec("orig_target_sizes", "int64", (-1, 2))
SCALE = TensorSpec("scale_factor", "float32", (-1, 2))
SHAPE = TensorSpec("im_shape", "float32", (-1, 2))
IMAGE_SHAPE = TensorSpec("image_shape", "float32", (-1, 2))
MASK = TensorSpec("pixel_mask", "int64", (-1, 64, 64))
WHOLE = TensorSpec("input", "int32", (1, 640, 640, 3))
MEDIAPIPE = TensorSpec("input", "float32", (1, 128, 128, 3))

ANYTHING = "can be of models of any kind"
PERSON = {"kpt_shape": "[17, 3]"}
CALLED = {"task": "detect", "names": names(80)["names"]}
TABLE = {
    "RT-DETR, D-FINE, DEIM": ((image(), SIZES), rtdetr, {}, "rtdetr"),
    "RT-DETR without sizes": ((image(),), rtdetr, {}, "rtdetr"),
    "DEIMv2 atto": ((image(416, 416), SIZES), rtdetr, {}, "rtdetr"),
    "RF-DETR of COCO": ((image(name="input"),), lambda: rfdetr(91), {}, "rfdetr"),
    "RF-DETR fine-tuned": ((image(),), lambda: rfdetr(81), {}, "nothing tells which"),
    "RF-DETR fine-tuned, named": (
        (image(),), lambda: rfdetr(81), names(80), "rfdetr-background-last"
    ),
    "RF-DETR with masks": ((image(),), rfdetr_masks, {}, "rfdetr-seg"),
    "RF-DETR by LibreYOLO": (
        (image(),), lambda: rfdetr(91), {"model_family": "rfdetr", **names(80)}, "rfdetr"
    ),
    "D-FINE with masks by LibreYOLO": (
        (image(),), lambda: raw_detr() | {"pred_masks": random(1, QUERIES, 160, 160)},
        {"model_family": "dfine", "task": "segment", **names(80)}, "rtdetr-raw-seg",
    ),
    "D-FINE with masks, stripped": (
        (image(),), lambda: raw_detr() | {"pred_masks": random(1, QUERIES, 160, 160)}, {},
        "rtdetr-raw-seg",
    ),
    "D-FINE with the names of RF-DETR": (
        (image(),), rfdetr_masks, {"model_family": "dfine"}, "the metadata says dfine"
    ),
    "RT-DETR of Hugging Face": (
        (image(name="pixel_values"),), lambda: raw_detr("logits"), {}, "rtdetr-raw"
    ),
    "DETR, YOLOS of Hugging Face": ((image(name="pixel_values"), MASK), detr, {}, "detr"),
    "DETR after LogSoftmax": ((image(),), lambda: detr(log_softmax=True), {}, "detr"),
    "DETRs by LibreYOLO": (
        (image(),), raw_detr, {"model_family": "dfine", **names(80)}, "rtdetr-raw"
    ),
    "Ultralytics RT-DETR to 8.3": (
        (image(),), lambda: one(joined(*queries()[::-1])), {}, "ultralytics-rtdetr-raw"
    ),
    "Ultralytics RT-DETR 8.4": (
        (image(),), ultralytics_rtdetr_ranked, {"head": "RTDETRDecoder"}, "ultralytics-rtdetr"
    ),
    "Ultralytics RT-DETR 8.4, stripped": (
        (image(),), ultralytics_rtdetr_ranked, {}, "ultralytics-rtdetr"
    ),
    "PaddleDetection": ((SHAPE, image(name="image"), SCALE), paddle, {}, "paddle"),
    "PP-YOLOE raw": ((image(),), lambda: boxes_and_scores(transposed=True), {}, "ppyoloe"),
    "DAMO-YOLO": (
        (image(),), lambda: boxes_and_scores(boxes_first=False), {}, "ppyoloe and damo-yolo"
    ),
    "YOLO-NAS raw": ((image(),), boxes_and_scores, {}, "yolo-nas, ppyoloe and damo-yolo"),
    "YOLO-NAS by LibreYOLO": (
        (image(),), boxes_and_scores, {"model_family": "yolonas"}, "yolo-nas"
    ),
    "YOLO-NAS flat": (
        (image(dtype="uint8"),),
        lambda: {"graph2_flat_predictions": flat_rows(score_first=True)}, {}, "yolonas-flat",
    ),
    "YOLO-NAS batch": (
        (image(dtype="uint8"),),
        lambda: four("num_predictions", "pred_boxes", "pred_scores", "pred_classes"),
        {}, "efficientnms",
    ),
    "YOLOv6": ((image(),), yolov6, {}, "yolov6"),
    "YOLOX": ((image(),), lambda: yolox(offsets), {}, "yolox"),
    "YOLOX decoded": ((image(),), lambda: yolox(centred), {}, "yolox-decoded"),
    "EfficientNMS": (
        (image(),), lambda: four("num_dets", "det_boxes", "det_scores", "det_classes"),
        {}, "efficientnms",
    ),
    "EfficientNMS of YOLOv8-TensorRT": (
        (image(),), lambda: four("num_dets", "bboxes", "scores", "labels"), {}, "efficientnms"
    ),
    "YOLOv7 --max-wh": (
        (image(),), lambda: {"output": flat_rows(score_first=False)}, {}, "yolov7-end2end"
    ),
    "YOLOv5, v7": ((image(),), yolov5, {}, "yolov5"),
    "YOLOv5, v7 without grid": ((image(),), raw_levels, {}, "yolov5-raw and yolov7-raw"),
    "YOLOv5 without grid, with anchors": (
        (image(),), raw_levels, {"anchors": str(FAMILIES["yolov5-raw"].anchors)}, "yolov5-raw"
    ),
    "YOLOv8, 11, 12, World, YOLOE": ((image(),), yolov8, CALLED, "yolov8"),
    "YOLOv8, stripped": ((image(),), yolov8, {}, "yolov8"),
    "YOLOv10, 26": ((image(),), lambda: one(joined(*ranked())), CALLED, "yolov10"),
    "YOLOv9 by LibreYOLO": (
        (image(),), lambda: yolov8(corners), {"model_family": "yolo9"}, "libreyolo-yolo9"
    ),
    "segment v8, 11, 12": ((image(),), segmenter, {}, "yolov8-seg"),
    "segment 26": ((image(),), segmenter_rows, {}, "yolov10-seg"),
    "pose v8, 11": ((image(),), pose, PERSON, "yolov8-pose"),
    "pose v8, 11, stripped": ((image(),), pose, {}, "yolov8-pose"),
    "pose 26": ((image(),), pose_rows, PERSON, "yolov10-pose"),
    "pose 26, stripped": ((image(),), pose_rows, {}, "yolov10-pose"),
    "pose 26, fractions": (
        (image(),), lambda: pose_rows(lambda points: points / [640, 640, 1]), PERSON,
        "keypoints are no pixels",
    ),
    "pose 26, percent": (
        (image(),), lambda: pose_rows(lambda points: points * [1, 1, 100]), PERSON,
        "a keypoint's score is no probability",
    ),
    "pose 26, all x before all y": (
        (image(),), lambda: pose_rows(lambda points: points.swapaxes(1, 2)), PERSON,
        "a keypoint's score is no probability",
    ),
    "rotated v8, 11": ((image(),), rotated, {"task": "obb"}, "yolov8-obb"),
    "rotated v8, 11, stripped": ((image(),), rotated, {}, "yolov8-obb"),
    "rotated 26": ((image(),), rotated_rows, {"task": "obb"}, "yolov10-obb"),
    "classify": ((image(224, 224),), classes, {"task": "classify"}, "yolo-classifier"),
    "classify, stripped": ((image(224, 224),), classes, {}, "classifier"),
    "semantic 26": ((image(),), class_map, {"task": "semantic"}, "class-map"),
    "semantic 26, stripped": ((image(),), class_map, {}, "class-map"),
    "semantic 26, logits": (
        (image(),), lambda: one(random(1, 19, 640, 640, low=-9)), {"task": "semantic"}, "semantic"
    ),
    "SegFormer of Hugging Face": (
        (image(),), lambda: {"logits": random(1, 19, 160, 160, low=-9)}, {}, "semantic"
    ),
    "depth 26": (
        (image(),), lambda: one(depth()[None]), {"task": "depth", "head": "Depth"}, "yolo-depth"
    ),
    "depth 26, stripped": ((image(),), lambda: one(depth()[None]), {}, ANYTHING),
    "MMDetection by MMDeploy": ((image(name="input"),), mmdet, {}, "mmdeploy"),
    "Mask R-CNN by MMDeploy": (
        (image(),), lambda: mmdet() | {"masks": random(1, 100, 28, 28)}, {}, "mmdeploy-seg"
    ),
    "torchvision": ((image(),), torchvision, {}, "torchvision"),
    "torchvision's Mask R-CNN": (
        (image(),), lambda: torchvision() | {"masks": random(300, 1, 64, 64)}, {},
        "torchvision-seg",
    ),
    "TF OD API": ((bytes_image(),), lambda: tensorflow(1), {}, "tf-detection"),
    "TFLite": (
        (bytes_image(),), lambda: tensorflow(0, "TFLite_Detection_PostProcess"), {},
        "tflite-detection",
    ),
    "EfficientDet by automl": ((bytes_image(),), automl, {}, "automl-efficientdet"),
    "YOLOv3 of the ONNX zoo": ((image(name="input_1"), IMAGE_SHAPE), yolov3_nms, {}, "yolov3-nms"),
    "NanoDet-Plus": ((image(name="data"),), nanodet_plus, {}, "nanodet-plus"),
    "PicoDet, GFL raw": ((image(),), picodet, {}, "picodet-raw"),
    "CenterNet": ((image(),), centernet, {}, "centernet"),
    "CenterFace": ((image(),), centerface, {}, "centerface"),
    "YuNet 2023": ((image(),), yunet, {}, "yunet"),
    "SCRFD": ((image(name="input.1"),), scrfd, {}, "scrfd"),
    "RetinaFace": ((image(),), retinaface, {}, "retinaface"),
    "RetinaFace of 1 MB": ((image(),), lambda: retinaface(128), {}, "retinaface-1mb"),
    "RetinaFace of plates": ((image(),), lambda: retinaface(points=4), {}, "retinaface-plate"),
    "RetinaFace of larger plates": (
        (image(),), lambda: retinaface(192 * 2, points=4), {}, "retinaface-plate-large"
    ),
    "RetinaFace of priors of one's own": (
        (image(),), lambda: retinaface(400), {}, "moves by 0.36 of a cell"
    ),
    "YOLOv5-face": ((image(),), yolov5_face, {}, "yolov5-face"),
    "UltraFace": ((image(240, 320),), ultraface, {}, "ultraface"),
    "BlazeFace": ((MEDIAPIPE,), blazeface, {}, "blazeface"),
    "palm detector": ((MEDIAPIPE,), lambda: mediapipe(2016, 18), {}, "no family"),
    "MoveNet": ((WHOLE,), movenet, {}, "movenet"),
    "MoveNet multipose": ((WHOLE,), lambda: movenet(6), {}, "movenet-multipose"),
    "PP-OCR det": ((image(name="x"),), text_map, {}, ANYTHING),
    "PP-OCR det, told": ((image(name="x"),), text_map, {"task": "text"}, "ppocr-det"),
    "PP-OCR rec": (
        (image(48, 320),), lambda: one(shares(40, 97)[None]), {}, "100 queries at least"
    ),
    "PP-OCR rec of wide lines": (
        (image(48, 960),), lambda: one(shares(120, 97)[None]), {}, "all columns add up to 1"
    ),
    "PP-OCR rec with its dictionary": (
        (image(48, 320),), lambda: one(shares(40, 97)[None]),
        {"character": "\n".join(map(chr, range(97, 192)))}, "ctc"
    ),
    "PP-OCR cls": ((image(48, 192),), lambda: one(shares(1, 2)), {}, "classifier"),
    "Depth Anything": (
        (image(518, 518),), lambda: {"predicted_depth": depth(518, 518)}, {}, "depth"
    ),
    "MiDaS": ((image(256, 256),), lambda: one(depth(256, 256)), {}, ANYTHING),
    "what stands out": ((image(320, 320),), lambda: one(soft_map(320, 320)[None]), {}, ANYTHING),
    "what stands out, smaller": (
        (image(640, 640),), lambda: one(soft_map(320, 320)[None]), {}, "four numbers within"
    ),
    "SAM's encoder": (
        (image(1024, 1024),),
        lambda: {"image_embeddings": random(1, 256, 64, 64, low=-1)}, {}, ANYTHING,
    ),
    "SAM's decoder": (
        tuple(TensorSpec(name, "float32", (1, 256, 64, 64))
              for name in ("image_embeddings", "point_coords")),
        lambda: {"masks": random(1, 4, 64, 64), "iou_predictions": random(1, 4)}, {},
        "not one batch of colour images",
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
