"""Lists the families that are decoded. A new head needs a file and a line in this list."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.heads.boxes_and_scores import DamoYolo, PpYoloE, YoloNas
from fovea_engines.detect.heads.centerface import CenterFace
from fovea_engines.detect.heads.centernet import CenterNet, CenterNetLogits
from fovea_engines.detect.heads.classifier import Classifier, ClassifierLogits, YoloClassifier
from fovea_engines.detect.heads.depth import Depth, YoloDepth
from fovea_engines.detect.heads.detr import Detr, RawRtDetr
from fovea_engines.detect.heads.fastestdet import FastestDet
from fovea_engines.detect.heads.flat_rows import (
    AutoMlEfficientDet,
    ClassFirstRows,
    YoloNasFlat,
    YoloV7EndToEnd,
)
from fovea_engines.detect.heads.four_tensors import (
    EfficientNms,
    TensorFlowDetection,
    TfLiteDetection,
)
from fovea_engines.detect.heads.libreyolo import LibreYolo9, PicoDet, RtmDet
from fovea_engines.detect.heads.mmdeploy import MmDeploy
from fovea_engines.detect.heads.movenet import MoveNet, MoveNetMultiPose
from fovea_engines.detect.heads.nanodet import NanoDet, NanoDetJoined, NanoDetPlus, PicoDetRaw
from fovea_engines.detect.heads.obb import YoloNasObb, YoloV8Obb, YoloV10Obb
from fovea_engines.detect.heads.paddle import Paddle
from fovea_engines.detect.heads.pose import YoloV8Pose, YoloV10Pose
from fovea_engines.detect.heads.retinaface import RetinaFace, RetinaFace1Mb
from fovea_engines.detect.heads.rfdetr import RfDetr, RfDetrBackgroundFirst, RfDetrBackgroundLast
from fovea_engines.detect.heads.rfdetr_more import (
    RfDetrKeypoints,
    RfDetrKeypointsBackgroundFirst,
    RfDetrKeypointsBackgroundLast,
    RfDetrSegment,
    RfDetrSegmentBackgroundLast,
)
from fovea_engines.detect.heads.row_masks import MmDeploySegment, TorchvisionSegment
from fovea_engines.detect.heads.rtdetr import RtDetr
from fovea_engines.detect.heads.saliency import IsNet, U2Net
from fovea_engines.detect.heads.scrfd import Scrfd
from fovea_engines.detect.heads.segment import YoloV5Segment, YoloV8Segment, YoloV10Segment
from fovea_engines.detect.heads.semantic import ClassIds, DeepLab, Semantic
from fovea_engines.detect.heads.text import PpOcrDetection
from fovea_engines.detect.heads.torchvision import Torchvision
from fovea_engines.detect.heads.ultraface import UltraFace
from fovea_engines.detect.heads.ultralytics_rtdetr import RawUltralyticsRtDetr, UltralyticsRtDetr
from fovea_engines.detect.heads.yolov5 import YoloV5
from fovea_engines.detect.heads.yolov5_face import YoloV5Face
from fovea_engines.detect.heads.yolov5_raw import YoloV5Raw, YoloV7Raw
from fovea_engines.detect.heads.yolov6 import YoloV6
from fovea_engines.detect.heads.yolov8 import YoloV8
from fovea_engines.detect.heads.yolov10 import YoloV10
from fovea_engines.detect.heads.yolox import DecodedYoloX, YoloX
from fovea_engines.detect.heads.yunet import YuNet, YuNet2021

FAMILIES: Mapping[str, type[Head]] = MappingProxyType(
    {
        head.family: head
        for head in (
            YoloV5,
            YoloV6,
            YoloV8,
            YoloV10,
            YoloX,
            DecodedYoloX,
            LibreYolo9,
            RtmDet,
            PicoDet,
            EfficientNms,
            TensorFlowDetection,
            TfLiteDetection,
            MmDeploy,
            MmDeploySegment,
            Paddle,
            Torchvision,
            TorchvisionSegment,
            YoloV7EndToEnd,
            ClassFirstRows,
            YoloNasFlat,
            AutoMlEfficientDet,
            YoloNas,
            PpYoloE,
            DamoYolo,
            YoloV5Raw,
            YoloV7Raw,
            NanoDet,
            NanoDetJoined,
            NanoDetPlus,
            PicoDetRaw,
            CenterNet,
            CenterNetLogits,
            FastestDet,
            YuNet,
            YuNet2021,
            Scrfd,
            RetinaFace,
            RetinaFace1Mb,
            UltraFace,
            CenterFace,
            YoloV5Face,
            Detr,
            RtDetr,
            RawRtDetr,
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
            YoloV5Segment,
            YoloV8Segment,
            YoloV10Segment,
            YoloV8Pose,
            YoloV10Pose,
            MoveNet,
            MoveNetMultiPose,
            YoloV8Obb,
            YoloV10Obb,
            YoloNasObb,
            Classifier,
            ClassifierLogits,
            YoloClassifier,
            Semantic,
            DeepLab,
            ClassIds,
            U2Net,
            IsNet,
            Depth,
            YoloDepth,
            PpOcrDetection,
        )
    }
)
