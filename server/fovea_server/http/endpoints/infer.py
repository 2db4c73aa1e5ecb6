"""Tensors in, tensors out."""

from __future__ import annotations

import asyncio

from fovea_preprocess.errors import FoveaError, InvalidRequest, Unsupported
from fovea_server.http.compression import compress, decompressed
from fovea_server.http.endpoints.names import model_of
from fovea_server.http.infer_request import BodyReader, Wish
from fovea_server.http.infer_response import infer_answer
from fovea_server.http.messages import TEXT, Answer, Request, error_answer
from fovea_server.http.raw_input import raw_input
from fovea_server.models.model import ServedModel
from fovea_server.v2.messages import InferRequest
from fovea_server.v2.pictures import raw_picture
from fovea_server.v2.service import Service

# Bytes of JSON that take longer to read than the event loop should stand still.
_LARGE = 262_144


async def infer(service: Service, request: Request) -> Answer:
    """Run a model."""
    # Triton names JSON as the type of only those errors that it finds between these two.
    try:
        model = model_of(service, request)
        if model.config.model_transaction_policy.decoupled:
            raise Unsupported(
                "HTTP end point doesn't support models with decoupled transaction policy"
            )
        body = await decompressed(request, service.settings.http_max_input_size)
        header_size = _header_size(request, len(body))
    except FoveaError as error:
        return error_answer(error, TEXT)
    arguments = (service, model, request, body, header_size)
    if header_size > _LARGE:
        asked, wish = await asyncio.to_thread(_asked, *arguments)
    else:
        asked, wish = _asked(*arguments)
    response = await service.plane.infer(asked)
    try:
        answer = infer_answer(response, wish, service.regions)
    except FoveaError as error:
        return error_answer(error, TEXT)
    accepted = request.headers.get(b"accept-encoding")
    if accepted is not None:
        await compress(answer, accepted)
    return answer


def _asked(
    service: Service,
    model: ServedModel,
    request: Request,
    body: bytes | bytearray,
    header_size: int,
) -> tuple[InferRequest, Wish]:
    version = request.names["version"]
    asked = InferRequest(model.name, None if version is None else model.version, [])
    if header_size:
        reader = BodyReader(asked, body, header_size, service.regions)
        reader.read()
        return asked, reader.wish
    picture = raw_picture(model, memoryview(body))
    asked.inputs.append(picture or raw_input(model, body))
    # Who sends a picture so reads the answer, too; Triton answers a tensor in binary.
    return asked, Wish(by_default=picture is None)


def _header_size(request: Request, body_size: int) -> int:
    """Bytes of JSON in the body; 0 says that it is a tensor and nothing else."""
    given = request.headers.get(b"inference-header-content-length")
    if given is None:
        return body_size
    size = _leading_number(given)
    if not 0 <= size <= body_size:
        raise InvalidRequest(
            f"inference header size should be in range (0, {body_size}), "
            f"got: {given.decode('latin-1')}"
        )
    return size


def _leading_number(text: bytes) -> int:
    """As C's atoi, which is what Triton reads this header with; 0 where it is no number."""
    try:
        return int(text)
    except ValueError:
        return 0
