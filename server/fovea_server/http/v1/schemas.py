"""The JSON of /v1: its schemas for the OpenAPI page, and the answers.

For speed, requests are parsed (`body.py`) and answers are made without these schemas; tests check
both against them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, create_model

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.options import PredictOptions
from fovea_preprocess.errors import FoveaError
from fovea_server.dataplane.images import Prediction
from fovea_server.tensors.image_messages import ImageResult


class ImageSource(BaseModel):
    """An image in a JSON request: exactly one of `data` and `url`."""

    model_config = ConfigDict(extra="forbid")

    data: str | None = Field(None, description="the encoded image, base64")
    url: str | None = Field(None, description="http(s) address (needs `--allow-url`)")


# The options have one definition, which requests are also parsed by.
_TYPES = get_type_hints(PredictOptions)
_FIELDS: dict[str, Any] = {
    "images": Annotated[list[ImageSource], Field(min_length=1)],
    **{
        option.name: (_TYPES[option.name], Field(option.default, **option.metadata))
        for option in fields(PredictOptions)
    },
}
PredictRequest = create_model(
    "PredictRequest",
    __doc__="A JSON request.",
    __config__=ConfigDict(extra="forbid"),
    **_FIELDS,
)


class Box(BaseModel):
    """Corners in pixels of the upright original."""

    x1: float
    y1: float
    x2: float
    y2: float


class Detection(BaseModel):
    """One thing found."""

    box: Box
    score: float
    class_id: int
    class_name: str


class Tensor(BaseModel):
    """A raw output row of a model whose head is not recognised."""

    name: str
    datatype: str
    shape: list[int]
    data: list[object]


class ErrorDetail(BaseModel):
    """A stable word for programs, a sentence for people."""

    code: str
    message: str


class Error(BaseModel):
    """Every answer that is not 2xx."""

    error: ErrorDetail


class ImageAnswer(BaseModel):
    """The detections of one image, best first."""

    width: int
    height: int
    orientation: Annotated[int, Field(ge=1, le=8, description="EXIF, as found in the file")]
    detections: list[Detection]


class TensorAnswer(BaseModel):
    """The answer for one image of a model whose head is not recognised.

    The image was letterboxed as RGB, 0 to 1, which is a guess.
    """

    width: int
    height: int
    orientation: Annotated[int, Field(ge=1, le=8)]
    reason: Annotated[str, Field(description="why there are no boxes")]
    tensors: list[Tensor]


class TimingMs(BaseModel):
    """Milliseconds by stage (of the slowest image in each) and in all."""

    decode: float
    letterbox: float
    queue: float
    infer: float
    postprocess: float
    total: float


class PredictAnswer(BaseModel):
    """Answers in the order of the images; a bad image among good ones fails only itself."""

    model: str
    version: str
    task: Literal["detect", "tensors"]
    images: list[ImageAnswer | TensorAnswer | Error]
    timing_ms: TimingMs


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """Make the body of a `PredictAnswer`."""
    return {
        "model": prediction.model,
        "version": str(prediction.version),
        "task": prediction.task,
        "images": [
            error_json(image) if isinstance(image, FoveaError) else _image_json(image, prediction)
            for image in prediction.images
        ],
        "timing_ms": {stage: round(ms, 3) for stage, ms in prediction.timing_ms.items()},
    }


def error_json(error: FoveaError) -> dict[str, Any]:
    """Make the body of an `Error`."""
    return {"error": {"code": error.code, "message": str(error)}}


def _image_json(image: ImageResult, prediction: Prediction) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "width": image.width,
        "height": image.height,
        "orientation": image.orientation,
    }
    if image.detections is not None:
        answer["detections"] = _detections_json(image.detections, prediction.labels)
    else:
        answer["reason"] = prediction.reason
        answer["tensors"] = [
            {
                "name": name,
                "datatype": array.dtype.name,
                "shape": list(array.shape),
                "data": array.ravel().tolist(),
            }
            for name, array in (image.tensors or {}).items()
        ]
    return answer


def _detections_json(found: Detections, labels: tuple[str, ...] | None) -> list[dict[str, Any]]:
    # A hundredth of a pixel and of a per mille: finer than any model, and short on the wire.
    boxes = np.round(found.boxes.astype(np.float64), 2).tolist()
    scores = np.round(found.scores.astype(np.float64), 5).tolist()
    return [
        {
            "box": {"x1": x1, "y1": y1, "x2": x2, "y2": y2},
            "score": score,
            "class_id": class_id,
            "class_name": class_name(labels, class_id),
        }
        for (x1, y1, x2, y2), score, class_id in zip(
            boxes, scores, found.class_ids.tolist(), strict=True
        )
    ]
