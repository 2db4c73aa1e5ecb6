"""A small typed client for a Fovea server.

Example:
    with Client("http://127.0.0.1:8000") as client:
        for found in client.predict("yolov8n", "bus.jpg", conf=0.5).detections:
            print(found.class_name, found.score, found.box)
"""

from fovea_client._async_client import AsyncClient
from fovea_client._attempts import server_address
from fovea_client._client import Client
from fovea_client._json import as_json, image_result
from fovea_client._masks import MaskFile, Outlines, RunLengths
from fovea_client._requests import ImageFormat, MaskFormat, PredictOptions
from fovea_client._responses import prediction
from fovea_client.answers import (
    TASKS,
    Detection,
    ImageError,
    ImageResult,
    Prediction,
    Tensor,
    Timing,
)
from fovea_client.errors import (
    ConnectionFailed,
    FoveaClientError,
    QueueFull,
    ServerError,
    UnexpectedAnswer,
)
from fovea_client.images import Channels, ImageSource
from fovea_client.models import Model, ModelSummary, ModelVersion, TensorMetadata
from fovea_client.results import (
    Attribute,
    Character,
    ClassArea,
    Depth,
    Embedding,
    Match,
    NewPicture,
    Reading,
    Saliency,
    ScoredClass,
    Semantic,
)
from fovea_client.settings import with_key
from fovea_client.shapes import Box, Corner, Keypoint, Rotated

__all__ = [
    "TASKS",
    "AsyncClient",
    "Attribute",
    "Box",
    "Channels",
    "Character",
    "ClassArea",
    "Client",
    "ConnectionFailed",
    "Corner",
    "Depth",
    "Detection",
    "Embedding",
    "FoveaClientError",
    "ImageError",
    "ImageFormat",
    "ImageResult",
    "ImageSource",
    "Keypoint",
    "MaskFile",
    "MaskFormat",
    "Match",
    "Model",
    "ModelSummary",
    "ModelVersion",
    "NewPicture",
    "Outlines",
    "PredictOptions",
    "Prediction",
    "QueueFull",
    "Reading",
    "Rotated",
    "RunLengths",
    "Saliency",
    "ScoredClass",
    "Semantic",
    "ServerError",
    "Tensor",
    "TensorMetadata",
    "Timing",
    "UnexpectedAnswer",
    "as_json",
    "image_result",
    "prediction",
    "server_address",
    "with_key",
]
