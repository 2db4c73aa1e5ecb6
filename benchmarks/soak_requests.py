"""The requests of `soak.py`: of every kind, as bytes, each with what its answer must hold."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from tritonclient.grpc import service_pb2

from fovea_engines.backends.base import Array

REGION, REGION_BYTES = f"fovea_soak_{os.getpid()}", 1 << 20
RELOADED = "simple_nobatch"
"""A model that is loaded anew all the while, and never fails to answer."""


@dataclass(frozen=True)
class Request:
    """One request and its answer.

    Attributes:
        sent: HTTP's head and body, or gRPC's message.
        status: HTTP's, or the number of gRPC's code.
        holds: bytes that are in the answer: the right numbers, or the right words.
    """

    sent: bytes
    status: int
    holds: bytes


def http_requests(picture: bytes, picture_model: str) -> list[Request]:
    """One of each kind over HTTP; the frequent kinds more than once, with numbers of their own.

    Args:
        picture: an encoded one.
        picture_model: what finds something on it.
    """
    numbers = np.arange(16, dtype=np.int32).reshape(1, 16)
    ones = np.ones((1, 16), np.int32)
    requests = [_binary("simple", (numbers + n, ones)) for n in range(40)]
    requests += [_json("simple", (numbers * n, ones)) for n in range(10)]
    requests += [_binary(model, (numbers, ones)) for model in ("simple_cache", "simple_prio")]
    requests += [_binary(RELOADED, (numbers[0] + n, ones[0])) for n in range(4)]
    requests += [_ensemble(numbers, ones), _compressed(numbers, ones), *_shared_memory(numbers)]
    large = np.linspace(0, 1, 1 << 16, dtype=np.float32).reshape(64, -1)
    requests += [_identity("FP32", large), _identity("FP16", large[:2].astype(np.float16))]
    words = ["", "h\u00e9llo", "x" * 500]
    asked = {"inputs": [_described("INPUT0", "BYTES", (1, 3), data=words)]}
    requests += [_post("identity_bytes/infer", asked, holds=orjson.dumps(words))]
    requests += [*_faults(numbers, ones), *_looks()]
    head = f"POST /v1/models/{picture_model}/predict HTTP/1.1"
    # A picture costs as much as a hundred of the others.
    return 5 * requests + [Request(_message(head, picture), 200, b'"score"')]


def grpc_requests() -> list[Request]:
    """Messages for ModelInfer."""
    numbers = np.arange(16, dtype=np.int32).reshape(1, 16)
    ones = np.ones((1, 16), np.int32)
    requests = [
        Request(_infer_message("simple", [numbers + n, ones]), 0, (numbers + n + 1).tobytes())
        for n in range(16)
    ]
    requests += [Request(_infer_message("nobody", [numbers]), 5, b"'nobody' is not found")]
    requests += [Request(_infer_message("simple", [numbers]), 3, b"expected 2 inputs but got 1")]
    requests += [Request(_infer_message(RELOADED, [numbers[0], ones[0]]), 0, b"OUTPUT1")]
    return requests


def _message(line: str, body: bytes = b"", *headers: str) -> bytes:
    lines = (line, "Host: soak", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _described(name: str, datatype: str, shape: Iterable[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), **more}


def _post(path: str, asked: Any, status: int = 200, holds: bytes = b"") -> Request:
    line = f"POST /v2/models/{path} HTTP/1.1"
    return Request(_message(line, orjson.dumps(asked)), status, holds)


def _binary_parts(arrays: Iterable[Array], **more: Any) -> tuple[bytes, bytes]:
    inputs, tail = [], b""
    for n, array in enumerate(arrays):
        size = {"parameters": {"binary_data_size": array.nbytes}}
        inputs.append(_described(f"INPUT{n}", "INT32", array.shape, **size))
        tail += array.tobytes()
    asked = {"inputs": inputs, "parameters": {"binary_data_output": True}, **more}
    return orjson.dumps(asked), tail


def _binary(model: str, arrays: tuple[Array, Array]) -> Request:
    head, tail = _binary_parts(arrays)
    line = f"POST /v2/models/{model}/infer HTTP/1.1"
    sent = _message(line, head + tail, f"Inference-Header-Content-Length: {len(head)}")
    first, second = arrays
    return Request(sent, 200, (first + second).tobytes() + (first - second).tobytes())


def _json(model: str, arrays: tuple[Array, Array]) -> Request:
    inputs = [
        _described(f"INPUT{n}", "INT32", array.shape, data=array.ravel().tolist())
        for n, array in enumerate(arrays)
    ]
    holds = orjson.dumps((arrays[0] + arrays[1]).ravel().tolist())
    return _post(f"{model}/infer", {"id": "soak", "inputs": inputs}, holds=holds)


def _ensemble(first: Array, second: Array) -> Request:
    # Sum and difference of sum and difference.
    plain = _binary("simple_ensemble", (first, second))
    return Request(plain.sent, 200, (2 * first).tobytes() + (2 * second).tobytes())


def _compressed(first: Array, second: Array) -> Request:
    head, tail = _binary_parts((first, second))
    line = "POST /v2/models/simple/infer HTTP/1.1"
    length = f"Inference-Header-Content-Length: {len(head)}"
    sent = _message(line, gzip.compress(head + tail), length, "Content-Encoding: gzip")
    return Request(sent, 200, (first + second).tobytes())


def _identity(datatype: str, array: Array) -> Request:
    size = {"parameters": {"binary_data_size": array.nbytes}}
    inputs = [_described("INPUT0", datatype, array.shape, **size)]
    head = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    line = f"POST /v2/models/identity_{datatype.lower()}/infer HTTP/1.1"
    length = f"Inference-Header-Content-Length: {len(head)}"
    return Request(_message(line, head + array.tobytes(), length), 200, array.tobytes())


def _shared_memory(numbers: Array) -> list[Request]:
    """Inputs from the region, which holds zeros; and an output into its far end."""
    place = {"shared_memory_region": REGION, "shared_memory_byte_size": 64}
    inputs = [_described(f"INPUT{n}", "INT32", (1, 16), parameters=place) for n in range(2)]
    far = place | {"shared_memory_offset": REGION_BYTES - 64}
    outputs = [{"name": "OUTPUT0"}, {"name": "OUTPUT1", "parameters": far}]
    asked = {"inputs": inputs, "outputs": outputs}
    beyond = {
        "inputs": [
            inputs[0],
            {**inputs[1], "parameters": place | {"shared_memory_offset": 1 << 50}},
        ]
    }
    return [
        _post("simple/infer", asked, holds=orjson.dumps((0 * numbers).ravel().tolist())),
        _post("simple/infer", beyond, 400, b"Invalid offset"),
    ]


def _faults(first: Array, second: Array) -> list[Request]:
    short = {"inputs": [_described("INPUT0", "INT32", (1, 16), data=first.ravel().tolist())]}
    return [
        Request(_binary("nobody", (first, second)).sent, 404, b"'nobody' is not found"),
        _post("simple/infer", short, 400, b"expected 2 inputs but got 1"),
        Request(_message("POST /v2/models/simple/infer HTTP/1.1", b"{"), 500, b"failed to parse"),
        Request(_message("GET /v2/models/simple/infer HTTP/1.1"), 405, b"Method Not Allowed"),
        Request(_message("GET /foo HTTP/1.1"), 404, b"Not Found"),
    ]


def _looks() -> list[Request]:
    expected = {
        "/v2": b'"triton"',
        "/v2/health/ready": b"",
        "/v2/models/simple": b'"INPUT0"',
        "/v2/models/simple/config": b'"max_batch_size":8',
        "/v2/models/simple/ready": b"",
        "/v2/models/stats": b'"inference_count"',
    }
    return [Request(_message(f"GET {p} HTTP/1.1"), 200, holds) for p, holds in expected.items()]


def _infer_message(model: str, arrays: list[Array]) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model)
    for n, array in enumerate(arrays):
        message.inputs.add(name=f"INPUT{n}", datatype="INT32", shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    return message.SerializeToString()
