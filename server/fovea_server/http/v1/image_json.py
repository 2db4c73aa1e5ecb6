"""The JSON of a prediction: of one image, in any thread, and of all of them joined."""

from __future__ import annotations

from typing import Any

import orjson

from fovea_engines.detect.options import PredictOptions
from fovea_preprocess.errors import FoveaError
from fovea_server.dataplane.images import Prediction
from fovea_server.http.v1.result_json import result_json
from fovea_server.tensors.image_messages import ImageResult, Vocabulary


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


def image_json(result: ImageResult, words: Vocabulary, options: PredictOptions) -> bytes:
    """Write an `ImageAnswer`, or a `TensorAnswer` where the head is not recognised."""
    answer: dict[str, Any] = {
        "width": result.width,
        "height": result.height,
        "orientation": result.orientation,
    }
    if result.found is not None:
        answer |= result_json(result.found, words, options)
    else:
        answer["reason"] = words.reason
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
