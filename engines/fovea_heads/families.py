"""Lists Fovea's own families. A new one needs a file and a line in this list."""

from __future__ import annotations

from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.heads.yolov8 import YoloV8
from fovea_heads.attributes import (
    AttributeLogits,
    AttributesHead,
    SigmoidAttributes,
)
from fovea_heads.blazeface import BlazeFace
from fovea_heads.boxes_and_scores import DamoYolo, PpYoloE, YoloNas
from fovea_heads.centerface import CenterFace
from fovea_heads.centernet import CenterNet, CenterNetLogits
from fovea_heads.classifier import Classifier, ClassifierLogits, YoloClassifier
from fovea_heads.depth import Depth, YoloDepth
from fovea_heads.detr import Detr, RawRtDetr
from fovea_heads.embedding import EmbeddingHead
from fovea_heads.fastestdet import FastestDet
from fovea_heads.flat_rows import (
    AutoMlEfficientDet,
    ClassFirstRows,
    YoloNasFlat,
    YoloV7EndToEnd,
)
from fovea_heads.four_tensors import (
    EfficientNms,
    TensorFlowDetection,
    TfLiteDetection,
)
from fovea_heads.libreyolo import LibreYolo9, PicoDet, RtmDet
from fovea_heads.mmdeploy import MmDeploy
from fovea_heads.movenet import MoveNet, MoveNetMultiPose
from fovea_heads.nanodet import NanoDet, NanoDetJoined, NanoDetPlus, PicoDetRaw
from fovea_heads.obb import YoloV8Obb, YoloV10Obb
from fovea_heads.paddle import Paddle
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
from fovea_heads.rfdetr import RfDetr, RfDetrBackgroundFirst, RfDetrBackgroundLast
from fovea_heads.rfdetr_more import (
    RawRtDetrSegment,
    RfDetrKeypoints,
    RfDetrKeypointsBackgroundFirst,
    RfDetrKeypointsBackgroundLast,
    RfDetrSegment,
    RfDetrSegmentBackgroundLast,
)
from fovea_heads.row_masks import MmDeploySegment, TorchvisionSegment
from fovea_heads.rtdetr import RtDetr
from fovea_heads.saliency import IsNet, U2Net
from fovea_heads.scrfd import Scrfd
from fovea_heads.segment import YoloV5Segment, YoloV8Segment, YoloV10Segment
from fovea_heads.semantic import ClassIds, DeepLab, Semantic
from fovea_heads.text import PpOcrDetection
from fovea_heads.torchvision import Torchvision
from fovea_heads.ultraface import UltraFace
from fovea_heads.ultralytics_rtdetr import RawUltralyticsRtDetr, UltralyticsRtDetr
from fovea_heads.yolo_fastestv2 import YoloFastestV2
from fovea_heads.yolo_nas_obb import YoloNasObb
from fovea_heads.yolov3_nms import YoloV3Nms
from fovea_heads.yolov4 import YoloV4
from fovea_heads.yolov5 import YoloV5
from fovea_heads.yolov5_face import YoloV5Face
from fovea_heads.yolov5_raw import YoloV5Raw, YoloV7Raw
from fovea_heads.yolov6 import YoloV6
from fovea_heads.yolov10 import YoloV10
from fovea_heads.yolox import DecodedYoloX, YoloX
from fovea_heads.yunet import YuNet, YuNet2021

HEADS: tuple[type[Head], ...] = (
    YoloV8,
    YoloV5,
    YoloV6,
    YoloV10,
    YoloX,
    DecodedYoloX,
    YoloV5Raw,
    YoloV7Raw,
    YoloV5Segment,
    YoloV8Segment,
    YoloV10Segment,
    YoloV8Pose,
    YoloV10Pose,
    YoloV8Obb,
    YoloV10Obb,
    Classifier,
    ClassifierLogits,
    YoloClassifier,
    EfficientNms,
    TensorFlowDetection,
    TfLiteDetection,
    YoloV7EndToEnd,
    ClassFirstRows,
    YoloNasFlat,
    AutoMlEfficientDet,
    AttributesHead,
    AttributeLogits,
    SigmoidAttributes,
    EmbeddingHead,
    Ctc,
    CtcLogits,
    LprNet,
    Pictures,
    SuperResolution,
    GreySuperResolution,
    Pictures255,
    SignedPictures,
    LibreYolo9,
    RtmDet,
    PicoDet,
    MmDeploy,
    MmDeploySegment,
    Paddle,
    YoloV3Nms,
    YoloV4,
    Torchvision,
    TorchvisionSegment,
    YoloNas,
    PpYoloE,
    DamoYolo,
    NanoDet,
    NanoDetJoined,
    NanoDetPlus,
    PicoDetRaw,
    CenterNet,
    CenterNetLogits,
    FastestDet,
    YoloFastestV2,
    YuNet,
    YuNet2021,
    Scrfd,
    RetinaFace,
    RetinaFace1Mb,
    RetinaFaceSlim,
    RetinaPlate,
    RetinaPlateLarge,
    UltraFace,
    BlazeFace,
    CenterFace,
    YoloV5Face,
    Detr,
    RtDetr,
    RawRtDetr,
    RawRtDetrSegment,
    UltralyticsRtDetr,
    RawUltralyticsRtDetr,
    RfDetr,
    RfDetrBackgroundLast,
    RfDetrBackgroundFirst,
    RfDetrSegment,
    RfDetrSegmentBackgroundLast,
    RfDetrKeypoints,
    RfDetrKeypointsBackgroundLast,
    RfDetrKeypointsBackgroundFirst,
    MoveNet,
    MoveNetMultiPose,
    YoloNasObb,
    Semantic,
    DeepLab,
    ClassIds,
    U2Net,
    IsNet,
    Depth,
    YoloDepth,
    PpOcrDetection,
)
