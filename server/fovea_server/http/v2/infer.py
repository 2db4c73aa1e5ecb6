"""The infer endpoint: parses the request, runs the model, writes the response."""

from __future__ import annotations

import asyncio
import secrets
import struct
from functools import partial
from math import prod
from typing import Any

import orjson

from fovea_preprocess.errors import FoveaError, InvalidRequest
from fovea_server.dataplane.encoded_tensors import raw_image
from fovea_server.dataplane.service import Service
from fovea_server.dataplane.v2_documents import refuse_decoupled
from fovea_server.http.messages import BINARY, TEXT, Buffer, Request, Response
from fovea_server.http.v2.answers import compress, decompress, error_answer
from fovea_server.http.v2.infer_request import BodyReader, OutputEncoding
from fovea_server.http.v2.tensor_json import ELEMENT, MANY, data_json, refuse_long
from fovea_server.json_text import MAX_OF_TENSORS
from fovea_server.models.model import ServedModel
from fovea_server.tensors.messages import InferRequest, InferResponse, InputTensor
from fovea_server.tensors.triton_json import leading_number
from fovea_server.tensors.wire import NUMPY, wire


async def infer(service: Service, request: Request) -> Response:
    """Run a model on the tensors of a request."""
    # Errors of the two `try` blocks have the content type text, as in Triton. All other errors are
    # JSON.
    try:
        model = service.models.find(request.name("model"), request.version)
        refuse_decoupled(model, "HTTP end point")
        body = await decompress(request, service.settings.http_max_input_size)
        header_size = _header_size(request, len(body))
    except FoveaError as error:
        return error_answer(error, TEXT)
    text = body if header_size == len(body) else body[:header_size]
    work = partial(_parse_body, service, model, request, text, body)
    infer_request, encoding = await service.json.run(text, work, MAX_OF_TENSORS)
    response = await service.plane.infer(model, infer_request, request.reservation)
    try:
        if elements := _long_json(response, encoding):
            held = request.reservation
            held.resize(held.size + elements * ELEMENT)
            answer = await asyncio.to_thread(_infer_answer, response, encoding)
        else:
            answer = _infer_answer(response, encoding)
    except FoveaError as error:
        return error_answer(error, TEXT)
    accepted = request.headers.get(b"accept-encoding")
    if accepted is not None:
        await compress(answer, accepted)
    return answer


def _parse_body(
    service: Service,
    model: ServedModel,
    request: Request,
    text: bytes | bytearray,
    body: bytes | bytearray,
) -> tuple[InferRequest, OutputEncoding]:
    version = request.names["version"]
    infer_request = InferRequest(model.name, None if version is None else model.version, [])
    if text:
        reader = BodyReader(infer_request, text, body, service.extensions.regions)
        reader.read()
        return infer_request, reader.encoding
    image = raw_image(model, memoryview(body))
    infer_request.inputs.append(image or _raw_input(model, body))
    # If the only input is a bare tensor, Triton returns binary outputs. Clients that send a bare
    # image expect JSON.
    return infer_request, OutputEncoding(by_default=image is None)


def _header_size(request: Request, body_size: int) -> int:
    """Return the size in bytes of the JSON in the body, or 0 if the body is one bare tensor."""
    given = request.headers.get(b"inference-header-content-length")
    if given is None:
        return body_size
    # Triton parses this header with C's atoi.
    size = leading_number(given.decode("latin-1")) or 0
    if not 0 <= size <= body_size:
        raise InvalidRequest(
            f"inference header size should be in range (0, {body_size}), "
            f"got: {given.decode('latin-1')}"
        )
    return size


def _raw_input(model: ServedModel, body: bytes | bytearray) -> InputTensor:
    """Return the input whose data is the whole body."""
    view = memoryview(body)
    signature = model.signature
    if len(signature.inputs) != 1:
        raise _invalid(
            "Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(signature.inputs)} inputs in '{model.name}' model configuration"
        )
    expected = signature.inputs[0]
    batch, dims = ((1,), expected.shape[1:]) if signature.max_batch_size else ((), expected.shape)
    variable = [index for index, size in enumerate(dims) if size == -1]
    if len(variable) > 1:
        raise _invalid(
            f"The shape of the raw input '{expected.name}' can not be deduced because there are "
            "more than one variable-sized dimension"
        )
    count = prod(size for size in dims if size != -1)
    if expected.datatype == "BYTES":
        if variable or count != 1:
            raise _invalid(
                f"For BYTE datatype raw input '{expected.name}', the model must have input "
                "shape [1]"
            )
        view = memoryview(struct.pack("<I", len(body)) + bytes(body))
    shape = list(dims)
    for index in variable:
        shape[index] = len(body) // (count * NUMPY[expected.datatype].itemsize) if count else 0
    return InputTensor(expected.name, expected.datatype, (*batch, *shape), view)


def _invalid(what: str) -> InvalidRequest:
    return InvalidRequest(f"[request id: <id_unknown>] {what}")


def _long_json(response: InferResponse, encoding: OutputEncoding) -> int:
    """Return the number of elements to write as JSON, or 0 if the conversion takes little time.

    Raises:
        AnswerTooLarge: the outputs have too many elements for JSON.
    """
    elements, is_long = 0, False
    for tensor in response.outputs:
        size, in_json = tensor.array.size, False
        if tensor.name not in encoding.shared:
            in_json = not encoding.binary.get(tensor.name, encoding.by_default)
        elements += size if in_json else 0
        is_long |= size > MANY and (in_json or tensor.datatype == "BYTES")
    refuse_long(elements)
    return max(elements, 1) if is_long else 0


def _infer_answer(response: InferResponse, encoding: OutputEncoding) -> Response:
    """Return the response, and write the outputs that are listed in `shared` to shared memory."""
    described: dict[str, Any] = {"id": response.id} if response.id else {}
    described["model_name"] = response.model_name
    described["model_version"] = response.model_version
    if response.parameters:
        described["parameters"] = response.parameters
    outputs: list[dict[str, Any]] = []
    described["outputs"] = outputs
    binary: list[Buffer] = []
    long: dict[str, list[bytes]] = {}
    for tensor in response.outputs:
        output: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
        }
        outputs.append(output)
        if tensor.name in encoding.shared:
            encoding.shared[tensor.name].write(tensor.name, wire(tensor))
        elif encoding.binary.get(tensor.name, encoding.by_default):
            data = wire(tensor)
            output["parameters"] = {"binary_data_size": len(data)}
            if data:
                binary.append(data)
        else:
            pieces = data_json(tensor)
            if len(pieces) == 1:
                output["data"] = orjson.Fragment(pieces[0])
            else:
                # Insert a random placeholder for the data, because orjson would copy the data. A
                # client cannot guess the placeholder.
                output["data"] = secrets.token_hex(16)
                long[output["data"]] = pieces
    text = _splice(orjson.dumps(described), long)
    if not binary:
        return Response(body=text)
    size = (b"inference-header-content-length", str(sum(map(len, text))).encode())
    return Response(body=[*text, *binary], media_type=BINARY, headers=[size])


def _splice(text: bytes, long: dict[str, list[bytes]]) -> list[Buffer]:
    """Replace the placeholders in the JSON by their arrays. Return the text in pieces."""
    spliced: list[Buffer] = []
    for name, pieces in long.items():
        before, _, text = text.partition(b'"%s"' % name.encode())
        spliced += (before, *pieces)
    return [*spliced, text]
