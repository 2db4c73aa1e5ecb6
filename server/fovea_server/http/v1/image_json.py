"""The JSON of a prediction: of one image, in any thread, and of all of them joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.detections import Detections
from fovea_preprocess.errors import FoveaError
from fovea_server.dataplane.images import Prediction
from fovea_server.tensors.image_messages import ImageResult

# A hundredth of a pixel and of a per mille: finer than any model, and short on the wire.
_PER_UNIT = np.array([1e2, 1e2, 1e2, 1e2, 1e5])


def prediction_json(prediction: Prediction) -> bytes:
    """Write the body of a `PredictAnswer`, whose images are encoded."""
    images = [
        error_json(image) if isinstance(image, FoveaError) else image.encoded
        for image in prediction.images
    ]
    return orjson.dumps(
        {
            "model": prediction.model,
            "version": str(prediction.version),
            "task": prediction.task,
            "images": list(map(orjson.Fragment, images)),
            "timing_ms": {stage: round(ms, 3) for stage, ms in prediction.timing_ms.items()},
        }
    )


def error_json(error: FoveaError) -> bytes:
    """Write the body of an `Error`."""
    # It may quote a client's bytes that are no valid text.
    message = str(error).encode(errors="backslashreplace").decode()
    return orjson.dumps({"error": {"code": error.code, "message": message}})


def image_json(result: ImageResult, labels: Sequence[str] | None, reason: str) -> bytes:
    """Write an `ImageAnswer`, or a `TensorAnswer` where the head is not recognised.

    Args:
        result: of one image.
        labels: class names by id; None when unknown.
        reason: why there are tensors and no boxes.
    """
    answer: dict[str, Any] = {
        "width": result.width,
        "height": result.height,
        "orientation": result.orientation,
    }
    if result.detections is not None:
        answer["detections"] = _detections(result.detections, labels)
    else:
        answer["reason"] = reason
        answer["tensors"] = [
            {
                "name": name,
                "datatype": array.dtype.name,
                "shape": array.shape,
                "data": array.ravel().tolist(),
            }
            for name, array in (result.tensors or {}).items()
        ]
    return orjson.dumps(answer)


def _detections(found: Detections, labels: Sequence[str] | None) -> list[dict[str, Any]]:
    # As `np.round` computes it, in three steps for all numbers. orjson writes dicts faster than
    # any template of ours is filled in.
    numbers = np.empty((len(found), 5))
    numbers[:, :4] = found.boxes
    numbers[:, 4] = found.scores
    numbers *= _PER_UNIT
    np.rint(numbers, numbers)
    numbers /= _PER_UNIT
    ids = found.class_ids.tolist()
    names = {class_id: class_name(labels, class_id) for class_id in set(ids)}
    return [
        {
            "box": {"x1": x1, "y1": y1, "x2": x2, "y2": y2},
            "score": score,
            "class_id": class_id,
            "class_name": names[class_id],
        }
        for (x1, y1, x2, y2, score), class_id in zip(numbers.tolist(), ids, strict=True)
    ]
