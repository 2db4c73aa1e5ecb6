"""Responses of predict requests as JSON or as drawn images, independent of the transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from starlette.concurrency import run_in_threadpool

from fovea_engines.drawing.drawing import annotate
from fovea_engines.results.new_image import MediaType
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import FoveaError, ImageTooLarge, InvalidImage, InvalidRequest
from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.dataplane.prediction import Prediction, PredictRequest
from fovea_server.dataplane.service import Service
from fovea_server.error_status import http_status
from fovea_server.http.messages import Response, error_headers
from fovea_server.http.v1.request_head import wraps_images
from fovea_server.models.model import ServedModel
from fovea_server.tensors.messages import ImageResult, SentImage


def error_answer(error: FoveaError) -> Response:
    """Return the response for an error."""
    headers = error_headers(error)
    return Response(http_status(error), [error_json(error)], headers=headers, error=error)


async def boxes_json(
    plane: DataPlane,
    model: ServedModel,
    version: int | None,
    images: Sequence[SentImage | FoveaError],
    options: PredictOptions,
    timeout_s: float | None,
    content_type: str,
) -> bytes:
    """Run a model on images, and return the results as JSON.

    Raises:
        FoveaError: an error of `DataPlane.predict`, or the image's error if there is only one
            image.
    """
    request = PredictRequest(
        model, version, images, options, timeout_s=timeout_s, encode=image_json
    )
    prediction = await plane.predict(request)
    raise_if_alone(prediction, images, content_type)
    return prediction_json(prediction)


def raise_if_alone(
    prediction: Prediction, sent: Sequence[SentImage | FoveaError], content_type: str
) -> None:
    """Raise the error of an image if it is the only image of the request."""
    if len(prediction.images) != 1 or not isinstance(prediction.images[0], FoveaError):
        return
    error, body = prediction.images[0], sent[0]
    too_large = isinstance(error, ImageTooLarge)
    if isinstance(error, InvalidImage) and not too_large and isinstance(body, bytes | bytearray):
        raise error.with_text(f"{error}{_hint(body, content_type)}")
    raise error


def _hint(body: bytes | bytearray, content_type: str) -> str:
    if body[:1] == b"{" and not wraps_images(content_type):
        return " (for JSON add the header Content-Type: application/json)"
    # curl sends this Content-Type by default, and removes line ends with -d.
    if content_type == "application/x-www-form-urlencoded" and b"\n" not in body:
        return " (with curl: --data-binary, not -d)"
    return ""


def prediction_json(prediction: Prediction) -> bytes:
    """Return the JSON of a `PredictAnswer`.

    The images of the prediction are already encoded as JSON.
    """
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
            "timing_ms": prediction.timing_ms(),
        }
    )


def error_json(error: FoveaError) -> bytes:
    """Return the JSON of an `Error`."""
    # The message may quote text of a client that is not valid UTF-8.
    message = str(error).encode(errors="backslashreplace").decode()
    return orjson.dumps({"error": {"code": error.code, "message": message}})


def image_json(result: ImageResult, vocabulary: Vocabulary, options: PredictOptions) -> bytes:
    """Return the JSON of an `ImageAnswer`.

    If the head is unknown, it contains raw tensors and the reason.
    """
    answer: dict[str, Any] = {
        "width": result.width,
        "height": result.height,
        "orientation": result.orientation,
    }
    if result.found is not None:
        answer |= result.found.to_json(vocabulary, options)
    else:
        answer["reason"] = vocabulary.reason
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


async def draw_image(service: Service, prediction: Prediction, kind: MediaType) -> bytes:
    """Draw the results on the only image of a prediction, and return the encoded image.

    The prediction must have kept its pixels.
    """
    result = prediction.images[0]
    assert isinstance(result, ImageResult)
    assert result.pixels is not None, "asked for with keep_pixels"
    if result.found is None:
        raise InvalidRequest(
            "the server cannot draw the outputs of this model, because its head is unknown: "
            "request JSON instead"
        )
    seen = result.found, result.pixels, prediction.vocabulary
    async with service.plane.drawing(result.pixels):
        return await run_in_threadpool(annotate, *seen, kind)
