"""The generate extension: inputs and outputs are members of JSON objects.

Source: "Generate Extension" of Triton's protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from fovea_preprocess.errors import FoveaError, InvalidRequest, MalformedJson
from fovea_server.dataplane.service import Service
from fovea_server.http.messages import EVENTS, Buffer, Request, Response
from fovea_server.http.v2.answers import error_answer, refuse_encoding
from fovea_server.http.v2.infer_request import parameter
from fovea_server.http.v2.tensor_json import ELEMENT, MANY, data_json, elements_of, refuse_long
from fovea_server.json_text import MAX_OF_TENSORS
from fovea_server.tensors.messages import InferRequest, InferResponse, InputTensor
from fovea_server.tensors.signature import ModelTensor
from fovea_server.tensors.triton_json import as_string, parse_json, read


async def generate(service: Service, request: Request) -> Response:
    """Run a model on inputs that are members of a JSON object."""
    return Response(body=[await _generate(service, request)])


async def generate_stream(service: Service, request: Request) -> Response:
    """Run a model like `generate`, and send the outputs as a stream with one event."""
    try:
        event = await _generate(service, request)
    except FoveaError as error:
        answer = error_answer(error)
        body: list[Buffer] = [b"data: ", *answer.body, b"\n\n"]
        return Response(answer.status, body, EVENTS, error=error)
    return Response(body=[b"data: ", event, b"\n\n"], media_type=EVENTS)


async def _generate(service: Service, request: Request) -> bytes:
    model = service.models.find(request.name("model"), request.version)
    refuse_encoding(request)
    version = None if request.names["version"] is None else model.version
    infer_request = InferRequest(model.name, version, [])
    work = partial(_read, request.body, infer_request, model.signature.inputs)
    await service.json.run(request.body, work, MAX_OF_TENSORS)
    response = await service.plane.infer(model, infer_request, request.reservation)
    elements = sum(tensor.array.size for tensor in response.outputs)
    refuse_long(elements)
    if any(tensor.array.size > MANY for tensor in response.outputs):
        held = request.reservation
        held.resize(held.size + elements * ELEMENT)
        return await asyncio.to_thread(_write_outputs, response)
    return _write_outputs(response)


def _read(
    body: bytes | bytearray, infer_request: InferRequest, signature: Sequence[ModelTensor]
) -> None:
    """Fill in `infer_request` from the JSON body of a request. Errors have Triton's texts."""
    inputs = {tensor.name: tensor for tensor in signature}
    given = parse_json(body, MAX_OF_TENSORS)
    if type(given) is not dict:
        raise MalformedJson("attempt to get members of a non-object")
    _set(infer_request, inputs, given)


def _set(
    infer_request: InferRequest,
    inputs: Mapping[str, ModelTensor],
    given: dict[str, Any],
) -> None:
    for name, value in given.items():
        if name in inputs:
            infer_request.inputs.append(_input(inputs[name], value))
        elif name == "id":
            infer_request.id = read("id", as_string, value)
        elif name == "parameters":
            if type(value) is not dict:
                raise InvalidRequest("Expected JSON object for keyword: 'parameters'")
            _set(infer_request, inputs, value)
        else:
            infer_request.parameters[name] = parameter(name, value)


def _input(tensor: ModelTensor, value: object) -> InputTensor:
    data = value if isinstance(value, list) else [value]
    elements = elements_of(tensor.name, tensor.datatype, data, None)
    shape = _shape(tensor, elements.size)
    return InputTensor(tensor.name, tensor.datatype, shape, elements)


def _shape(tensor: ModelTensor, left: int) -> tuple[int, ...]:
    """Return the shape of an input that has `left` elements.

    The last variable dimension of the model's shape is set so that all elements fit. The other
    variable dimensions become 1.
    """
    refused = InvalidRequest(
        f"The schema can not convert input '{tensor.name}' to tensor with proper shape"
    )
    shape = list(tensor.shape)
    for size in shape:
        if size != -1:
            if size == 0 or left % size:
                raise refused
            left //= size
    for index in reversed(range(len(shape))):
        if shape[index] == -1:
            shape[index], left = left, 1
    if left != 1:
        raise refused
    return tuple(shape)


def _write_outputs(response: InferResponse) -> bytes:
    """Return the outputs as JSON, sorted by name.

    An output with one element is written without brackets.
    """
    written: dict[str, Any] = {
        "model_name": response.model_name,
        "model_version": response.model_version,
        **response.parameters,
    }
    if response.id:
        written["id"] = response.id
    for tensor in response.outputs:
        data = b"".join(data_json(tensor))
        written[tensor.name] = orjson.Fragment(data[1:-1] if tensor.array.size == 1 else data)
    return orjson.dumps(dict(sorted(written.items())))
