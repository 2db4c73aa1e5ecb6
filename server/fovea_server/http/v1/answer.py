"""Predictions and errors as JSON-ready values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.detections import Detections
from fovea_preprocess.errors import FoveaError
from fovea_server.images.job import ImageResult

if TYPE_CHECKING:
    from fovea_server.dataplane.images import Prediction


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """The body of a predict answer (`schemas.PredictAnswer`)."""
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
    """The body of an error answer (`schemas.Error`)."""
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
