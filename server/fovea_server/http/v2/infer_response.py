"""Writes the answer of an infer request: JSON, followed by the binary tensors."""

from __future__ import annotations

import secrets
from typing import Any

import orjson

from fovea_server.http.v2.infer_request import OutputEncoding
from fovea_server.http.v2.messages import BINARY, Answer, Buffer
from fovea_server.http.v2.tensor_json import MANY, data_json
from fovea_server.tensors.messages import InferResponse
from fovea_server.tensors.wire import wire


def is_long(response: InferResponse, encoding: OutputEncoding) -> bool:
    """Return True if writing the answer would block the event loop."""
    for tensor in response.outputs:
        if tensor.array.size <= MANY:
            continue
        if tensor.datatype == "BYTES":
            return True
        if tensor.name not in encoding.shared and not encoding.binary.get(
            tensor.name, encoding.by_default
        ):
            return True
    return False


def infer_answer(response: InferResponse, encoding: OutputEncoding) -> Answer:
    """Write the answer; outputs in shared memory are written there.

    Raises:
        InvalidRequest: an output's type cannot be JSON.
        RegionFailed: an output does not fit its shared memory.
    """
    described = _described(response)
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
            encoding.shared[tensor.name].write(tensor)
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
                # A placeholder, because orjson would copy the data; no client can guess it.
                output["data"] = secrets.token_hex(16)
                long[output["data"]] = pieces
    text = _spliced(orjson.dumps(described), long)
    if not binary:
        return Answer(body=text)
    size = (b"inference-header-content-length", str(sum(map(len, text))).encode())
    return Answer(body=[*text, *binary], media_type=BINARY, headers=[size])


def _spliced(text: bytes, long: dict[str, list[bytes]]) -> list[Buffer]:
    """Replace placeholders by their arrays; return the text in pieces."""
    spliced: list[Buffer] = []
    for name, pieces in long.items():
        before, _, text = text.partition(b'"%s"' % name.encode())
        spliced += (before, *pieces)
    return [*spliced, text]


def _described(response: InferResponse) -> dict[str, Any]:
    described: dict[str, Any] = {"id": response.id} if response.id else {}
    described["model_name"] = response.model_name
    described["model_version"] = response.model_version
    if response.parameters:
        described["parameters"] = response.parameters
    return described
