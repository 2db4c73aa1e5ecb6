"""Lists Fovea's own head families.

To add a family, add its class to `HEADS` of the file that defines it, and its name to `_ORDER`.
"""

from __future__ import annotations

from fovea_engines.heads import (
    boxes_and_scores,
    centernet,
    classifier,
    detr,
    embedding,
    end_to_end,
    faces,
    four_tensors,
    frameworks,
    maps,
    nanodet,
    obb,
    pictures,
    pose,
    retinaface,
    rfdetr,
    segment,
    text,
    yolo_dense,
    yolo_fastest,
    yolo_raw,
)
from fovea_engines.heads.base import Head

_HEADS: tuple[type[Head], ...] = (
    *boxes_and_scores.HEADS,
    *centernet.HEADS,
    *classifier.HEADS,
    *detr.HEADS,
    *embedding.HEADS,
    *end_to_end.HEADS,
    *faces.HEADS,
    *four_tensors.HEADS,
    *frameworks.HEADS,
    *maps.HEADS,
    *nanodet.HEADS,
    *obb.HEADS,
    *pictures.HEADS,
    *pose.HEADS,
    *retinaface.HEADS,
    *rfdetr.HEADS,
    *segment.HEADS,
    *text.HEADS,
    *yolo_dense.HEADS,
    *yolo_fastest.HEADS,
    *yolo_raw.HEADS,
)

_ORDER = (
    "yolov8", "yolov5", "yolov6", "yolov10", "yolox", "yolox-decoded", "yolov5-raw",
    "yolov7-raw", "yolov5-seg", "yolov8-seg", "yolov10-seg", "yolov8-pose", "yolov10-pose",
    "yolov8-obb", "yolov10-obb", "classifier", "classifier-logits", "yolo-classifier",
    "efficientnms", "tf-detection", "tflite-detection", "yolov7-end2end", "class-first-rows",
    "yolonas-flat", "automl-efficientdet", "attributes", "attributes-logits",
    "attributes-sigmoid", "embedding", "ctc", "ctc-logits", "lprnet", "image",
    "super-resolution", "super-resolution-grey", "image-255", "image-signed", "libreyolo-yolo9",
    "rtmdet", "picodet", "mmdeploy", "mmdeploy-seg", "paddle", "yolov3-nms", "yolov4",
    "torchvision", "torchvision-seg", "yolo-nas", "ppyoloe", "damo-yolo", "nanodet",
    "nanodet-joined", "nanodet-plus", "picodet-raw", "centernet", "centernet-logits",
    "fastestdet", "yolo-fastestv2", "yunet", "yunet-2021", "scrfd", "retinaface",
    "retinaface-1mb", "retinaface-slim", "retinaface-plate", "retinaface-plate-large",
    "ultraface", "blazeface", "centerface", "yolov5-face", "detr", "rtdetr", "rtdetr-raw",
    "rtdetr-raw-seg", "ultralytics-rtdetr", "ultralytics-rtdetr-raw", "rfdetr",
    "rfdetr-background-last", "rfdetr-background-first", "rfdetr-seg",
    "rfdetr-seg-background-last", "rfdetr-keypoints", "rfdetr-keypoints-background-last",
    "rfdetr-keypoints-background-first", "movenet", "movenet-multipose", "yolo-nas-obb",
    "semantic", "deeplab", "class-map", "u2net", "isnet", "depth", "yolo-depth", "ppocr-det",
)  # fmt: skip
"""Names of all families, in the order of messages."""

HEADS = tuple(sorted(_HEADS, key=lambda head: _ORDER.index(head.family)))
"""The heads of all families, in the order of `_ORDER`."""
