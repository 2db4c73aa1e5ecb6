"""Runs models on encoded images, or on texts, in BYTES elements of Triton's protocol.

Triton's clients can thus use models without their own preprocessing and NMS. An image model accepts
a BYTES tensor of shape [n] or [n, 1] under the name of the model's input. Each element is an
encoded image. The `parameters` of the request are the prediction options.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import numpy as np

from fovea_engines.results.options import PredictOptions
from fovea_engines.results.vocabulary import NO_NAMES
from fovea_preprocess.errors import FoveaError, InvalidRequest
from fovea_preprocess.image import looks_encoded
from fovea_server.dataplane.options import parse_options
from fovea_server.dataplane.prediction import Prediction, PredictRequest
from fovea_server.models.model import ServedModel
from fovea_server.tensors.image_outputs import output_tensors, result_tensors
from fovea_server.tensors.messages import (
    ImageResult,
    InferRequest,
    InferResponse,
    InputTensor,
    OutputTensor,
)
from fovea_server.tensors.wire import decode_strings

if TYPE_CHECKING:
    from fovea_server.dataplane.dataplane import DataPlane

TEXT = "TEXT"
"""Name of the input for texts. Only a model with a text encoder has this input."""


def raw_image(model: ServedModel, body: memoryview) -> InputTensor | None:
    """Make an input from a request body that is one image.

    If the body is not an image, return None.
    """
    if not model.takes_images or not looks_encoded(bytes(body[:8])):
        return None
    element = np.empty(1, object)
    element[0] = bytes(body)
    return InputTensor(model.signature.inputs[0].name, "BYTES", (1,), element)


def answer_of_bytes(
    plane: DataPlane, model: ServedModel, request: InferRequest
) -> Coroutine[Any, Any, InferResponse] | None:
    """Return a coroutine that answers a request with images or texts.

    If the request has tensors for the engine, return None.
    """
    if (images := _encoded_images(model, request)) is not None:
        return _boxes(plane, model, request, images)
    if (texts := _encoded_texts(model, request)) is not None:
        return _vectors(plane, model, request, texts)
    return None


async def _boxes(
    plane: DataPlane, model: ServedModel, request: InferRequest, images: list[bytes]
) -> InferResponse:
    options = _options_of(request)
    predict_request = PredictRequest(
        model,
        model.version,
        images,
        options,
        request_id=request.id,
        priority=request.priority,
        timeout_us=request.timeout_us,
    )
    prediction = await plane.predict(predict_request)
    return _response(model, request, _prediction_tensors(prediction, options))


async def _vectors(
    plane: DataPlane, model: ServedModel, request: InferRequest, texts: list[str]
) -> InferResponse:
    options, timeout_s = _options_of(request), 1e-6 * request.timeout_us or None
    read = await plane.read_texts(model, model.version, texts, timeout_s=timeout_s)
    return _response(model, request, result_tensors(read, NO_NAMES, options))


def _response(
    model: ServedModel, request: InferRequest, tensors: list[OutputTensor]
) -> InferResponse:
    return InferResponse(
        model.name, str(model.version), _select_tensors(request, tensors), request.id
    )


def _encoded_images(model: ServedModel, request: InferRequest) -> list[bytes] | None:
    """Return the images of a request, or None if it has tensors for the engine."""
    if not model.takes_images or len(request.inputs) != 1:
        return None
    sent, expected = request.inputs[0], model.signature.inputs[0]
    if sent.datatype != "BYTES" or expected.datatype == "BYTES" or sent.name != expected.name:
        return None
    return _elements(sent, "images")


def _encoded_texts(model: ServedModel, request: InferRequest) -> list[str] | None:
    """Return the texts of a request, or None if it has no input named TEXT."""
    engine, sent = model.engine, request.inputs[0] if request.inputs else None
    if sent is None or sent.name != TEXT or engine is None or engine.words is None:
        return None
    if sent.datatype != "BYTES" or len(request.inputs) != 1:
        raise InvalidRequest(
            f"{TEXT} must be the only input, with the datatype BYTES: send images in another "
            "request"
        )
    try:
        return [text.decode() for text in _elements(sent, "texts")]
    except UnicodeDecodeError:
        raise InvalidRequest(f"{TEXT} has an element that is not UTF-8") from None


def _elements(sent: InputTensor, what: str) -> list[bytes]:
    if len(sent.shape) not in (1, 2) or sent.shape[1:] not in ((), (1,)) or sent.shape[0] < 1:
        raise InvalidRequest(
            f"input '{sent.name}' has shape {list(sent.shape)}; send {what} as BYTES of shape [n] "
            "or [n, 1], one per element"
        )
    data = sent.data
    if isinstance(data, memoryview):
        data = decode_strings(data, sent.shape[0])
    elements: list[bytes] = data.tolist()
    if len(elements) != sent.shape[0]:
        raise InvalidRequest(
            f"input '{sent.name}' has {len(elements)} elements, but its shape is "
            f"{list(sent.shape)}: send {sent.shape[0]} elements, or correct the shape"
        )
    return elements


def _options_of(request: InferRequest) -> PredictOptions:
    """Return the prediction options in the parameters of a request; see `parse_options`."""
    given = dict(request.parameters)
    if isinstance(given.get("classes"), int):
        given["classes"] = str(given["classes"])
    return parse_options(given)


def _prediction_tensors(prediction: Prediction, options: PredictOptions) -> list[OutputTensor]:
    """Convert a prediction for n images to tensors. Raise the error of the first failed image.

    If the head is unknown, the tensors are the engine's outputs of shape [n, ...].
    """
    results = [_result(prediction, index) for index in range(len(prediction.images))]
    found = [result.found for result in results if result.found is not None]
    if found:
        return result_tensors(found, prediction.vocabulary, options)
    rows = [result.tensors or {} for result in results]
    return output_tensors({name: np.stack([row[name] for row in rows]) for name in rows[0]})


def _select_tensors(request: InferRequest, tensors: list[OutputTensor]) -> list[OutputTensor]:
    """Return the requested tensors. Raise InvalidRequest if a requested tensor is unknown."""
    requested = {output.name for output in request.outputs}
    known = {tensor.name for tensor in tensors}
    if unknown := sorted(requested - known):
        raise InvalidRequest(
            f"unexpected inference output '{unknown[0]}' for model '{request.model_name}'; the "
            f"outputs for images are {', '.join(tensor.name for tensor in tensors)}"
        )
    return [tensor for tensor in tensors if not requested or tensor.name in requested]


def _result(prediction: Prediction, index: int) -> ImageResult:
    image = prediction.images[index]
    if not isinstance(image, FoveaError):
        return image
    if len(prediction.images) > 1:
        raise image.with_text(f"image {index}: {image}") from image
    raise image
