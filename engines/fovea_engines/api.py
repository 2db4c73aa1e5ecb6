"""The stable names for packages that add heads or backends. Import them from this module.

docs/how-to/extend.md and docs/how-to/own-head.md have examples. Do not import the names from the
modules that define them: these modules may move in any version.
"""

from __future__ import annotations

from fovea_engines.backends.backend import (
    Backend,
    BackendInfo,
    CompilePlan,
    Encoding,
    GpuBuffer,
    GpuMemory,
    OpenPlan,
)
from fovea_engines.backends.registry import open_session
from fovea_engines.heads.base import (
    CROPPED,
    IMAGENET,
    STRETCHED,
    YOLOX,
    Detector,
    Head,
    Layout,
    corners,
    softmax,
)
from fovea_engines.heads.custom import CustomHead
from fovea_engines.heads.dense import Dense, best_class
from fovea_engines.heads.evidence import (
    no_logits,
    no_probabilities,
    no_shares,
)
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.heads.yolo_dense import YoloV8
from fovea_engines.progress import Progress
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.figures import Precision
from fovea_engines.repository.options import BuilderOptions, Plugin
from fovea_engines.results.attributes import Attribute, Attributes
from fovea_engines.results.classes import Classes, best_classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.results.masks import Masks
from fovea_engines.results.new_image import NewImage
from fovea_engines.results.nms import choose, detections, rotated_detections, take
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.reading import ReadText
from fovea_engines.results.skeleton import FACE, PERSON, Skeleton
from fovea_engines.results.task_result import TaskResult
from fovea_engines.session import Array, Closing, ImageSession, Session, TensorSpec
from fovea_preprocess.errors import (
    BackendError,
    BackendUnavailable,
    BuildError,
    DeviceLost,
    FoveaError,
    InferenceFailed,
    InvalidModel,
    InvalidOption,
    NotFound,
    OutOfMemory,
    UnsupportedModel,
)
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.preprocessor import PlacedImage
from fovea_preprocess.spec import PreprocessSpec

__all__ = [
    "CROPPED",
    "FACE",
    "IMAGENET",
    "OTHERS",
    "PERSON",
    "STRETCHED",
    "YOLOX",
    "Array",
    "Attribute",
    "Attributes",
    "Backend",
    "BackendError",
    "BackendInfo",
    "BackendUnavailable",
    "BuildError",
    "BuilderOptions",
    "ClassMap",
    "Classes",
    "Closing",
    "CompilePlan",
    "CustomHead",
    "Dense",
    "DepthMap",
    "Detections",
    "Detector",
    "DeviceLost",
    "Embedding",
    "Encoding",
    "EngineCard",
    "Fit",
    "FoveaError",
    "GpuBuffer",
    "GpuMemory",
    "Head",
    "ImageSession",
    "InferenceFailed",
    "InvalidModel",
    "InvalidOption",
    "Layout",
    "LetterboxMap",
    "Masks",
    "NewImage",
    "NotFound",
    "OpenPlan",
    "OutOfMemory",
    "PlacedImage",
    "Plugin",
    "Precision",
    "PredictOptions",
    "PreprocessSpec",
    "Progress",
    "ReadText",
    "Session",
    "Signature",
    "Skeleton",
    "SoftMask",
    "Strength",
    "TaskResult",
    "TensorSpec",
    "UnsupportedModel",
    "YoloV8",
    "best_class",
    "best_classes",
    "choose",
    "corners",
    "detections",
    "no_logits",
    "no_probabilities",
    "no_shares",
    "open_session",
    "rotated_detections",
    "softmax",
    "take",
]
