"""Lists Fovea's own families. A new one needs a row in its lineage's file, and its name here."""

from __future__ import annotations

from fovea_engines.detect.heads.base import Head
from fovea_heads import (
    boxes_and_scores,
    centernet,
    detr,
    end_to_end,
    four_tensors,
    frameworks,
    nanodet,
    rfdetr,
    yolo_dense,
    yolo_fastest,
    yolo_raw,
)
from fovea_heads.attributes import AttributeLogits, AttributesHead, SigmoidAttributes
from fovea_heads.blazeface import BlazeFace
from fovea_heads.centerface import CenterFace
from fovea_heads.classifier import Classifier, ClassifierLogits, YoloClassifier
from fovea_heads.depth import Depth, YoloDepth
from fovea_heads.embedding import EmbeddingHead
from fovea_heads.movenet import MoveNet, MoveNetMultiPose
from fovea_heads.obb import YoloV8Obb, YoloV10Obb
from fovea_heads.pictures import (
    GreySuperResolution,
    Pictures,
    Pictures255,
    SignedPictures,
    SuperResolution,
)
from fovea_heads.pose import YoloV8Pose, YoloV10Pose
from fovea_heads.reading import Ctc, CtcLogits, LprNet
from fovea_heads.retinaface import RetinaFace, RetinaFace1Mb, RetinaPlate, RetinaPlateLarge
from fovea_heads.retinaface_slim import RetinaFaceSlim
from fovea_heads.saliency import IsNet, U2Net
from fovea_heads.scrfd import Scrfd
from fovea_heads.segment import YoloV5Segment, YoloV8Segment, YoloV10Segment
from fovea_heads.semantic import ClassIds, DeepLab, Semantic
from fovea_heads.text import PpOcrDetection
from fovea_heads.ultraface import UltraFace
from fovea_heads.yolo_nas_obb import YoloNasObb
from fovea_heads.yolov5_face import YoloV5Face
from fovea_heads.yunet import YuNet, YuNet2021

_HEADS: tuple[type[Head], ...] = (
    *boxes_and_scores.HEADS,
    *centernet.HEADS,
    *detr.HEADS,
    *end_to_end.HEADS,
    *four_tensors.HEADS,
    *frameworks.HEADS,
    *nanodet.HEADS,
    *rfdetr.HEADS,
    *yolo_dense.HEADS,
    *yolo_fastest.HEADS,
    *yolo_raw.HEADS,
    AttributeLogits,
    AttributesHead,
    SigmoidAttributes,
    BlazeFace,
    CenterFace,
    Classifier,
    ClassifierLogits,
    YoloClassifier,
    Depth,
    YoloDepth,
    EmbeddingHead,
    MoveNet,
    MoveNetMultiPose,
    YoloV8Obb,
    YoloV10Obb,
    GreySuperResolution,
    Pictures,
    Pictures255,
    SignedPictures,
    SuperResolution,
    YoloV8Pose,
    YoloV10Pose,
    Ctc,
    CtcLogits,
    LprNet,
    RetinaFace,
    RetinaFace1Mb,
    RetinaPlate,
    RetinaPlateLarge,
    RetinaFaceSlim,
    IsNet,
    U2Net,
    Scrfd,
    YoloV5Segment,
    YoloV8Segment,
    YoloV10Segment,
    ClassIds,
    DeepLab,
    Semantic,
    PpOcrDetection,
    UltraFace,
    YoloNasObb,
    YoloV5Face,
    YuNet,
    YuNet2021,
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
"""The families in the order in which reasons and choices list them."""

HEADS = tuple(sorted(_HEADS, key=lambda head: _ORDER.index(head.family)))
"""The heads of all families; the tables of lineages in the order of `_ORDER`."""
