"""The requests of `soak.py`: of every kind, as bytes, each with what its answer must hold."""

from __future__ import annotations

import base64
import gzip
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
import orjson
from tritonclient.grpc import service_pb2

from fovea_engines.session import Array

REGION, REGION_BYTES = f"fovea_soak_{os.getpid()}", 1 << 20
RELOADED = "simple_nobatch"
"""A model that is loaded anew all the while, and never fails to answer."""
PART = "python_int32_int32_int32"
"""A model that `simple_ensemble` runs; the same is true of it."""
UNLOADED = "onnx_nobatch_int32_int8_int8"
"""A model that is unloaded and loaded again all the while."""
OVERRIDDEN = "soak_override"
"""A model whose file comes with the request to load it."""
NOTHING = b""


@dataclass(frozen=True)
class Request:
    """One request and its answer.

    Attributes:
        sent: HTTP's head and body, or gRPC's message.
        status: HTTP's, or the number of gRPC's code.
        holds: bytes that are in the answer: the right numbers, or the right words.
        image: it has one.
    """

    sent: bytes
    status: int
    holds: bytes
    image: bool = False


def http_requests(image: bytes, image_model: str, repeats: int) -> list[Request]:
    """One of each kind over HTTP; the frequent kinds more than once, with numbers of their own.

    Args:
        image: an encoded one.
        image_model: what finds something on it.
        repeats: of each request with images, among eight of each other.
    """
    numbers = np.arange(16, dtype=np.int32).reshape(1, 16)
    ones = np.ones((1, 16), np.int32)
    requests = [_binary("simple", (numbers + n, ones)) for n in range(40)]
    requests += [_json("simple", (numbers * n, ones)) for n in range(10)]
    requests += [_binary(model, (numbers, ones)) for model in ("simple_cache", "simple_prio")]
    requests += [_binary(RELOADED, (numbers[0] + n, ones[0])) for n in range(4)]
    requests += [_ensemble(numbers, ones), _compressed(numbers, ones), *_shared_memory(numbers)]
    requests += [_many_strings()]
    large = np.linspace(0, 1, 1 << 16, dtype=np.float32).reshape(64, -1)
    requests += [_identity("FP32", large), _identity("FP16", large[:2].astype(np.float16))]
    words = ["", "h\u00e9llo", "x" * 500]
    asked = {"inputs": [_described("INPUT0", "BYTES", (1, 3), data=words)]}
    requests += [_post("identity_bytes/infer", asked, holds=orjson.dumps(words))]
    requests += [*_faults(numbers, ones), *_looks()]
    return 8 * requests + repeats * _images(image, image_model)


def _images(image: bytes, model: str) -> list[Request]:
    """On every path: in a thread, on the event loop (small ones), wrapped, refused."""
    head, small = (
        f"POST /v1/models/{model}/predict",
        cv2.imdecode(np.frombuffer(image, np.uint8), 1),
    )
    small = cv2.imencode(".jpg", cv2.resize(small, (64, 48)))[1].tobytes()
    wrapped = orjson.dumps({"images": [{"data": base64.b64encode(image).decode()}], "max_det": 1})
    bare = "Inference-Header-Content-Length: 0"
    requests = [
        Request(message(head, image), 200, b'"score"'),
        Request(message(f"{head}?conf=0.5&max_det=2", image), 200, b'"score"'),
        Request(message(head, small), 200, b'"detections"'),
        Request(message(head, wrapped, "Content-Type: application/json"), 200, b'"score"'),
        Request(message(head, image[: len(image) // 2]), 400, b'"invalid_image"'),
        Request(message(head, image, "Accept: image/jpeg"), 200, b"\xff\xd8\xff"),
        Request(message(f"POST /v2/models/{model}/infer", image, bare), 200, b"num_detections"),
        _image_tensor(model, image),
    ]
    return [replace(request, image=True) for request in requests]


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


def message(line: str, body: bytes = b"", *headers: str) -> bytes:
    """HTTP's head and body; `line` is the method and the path."""
    lines = (f"{line} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _described(name: str, datatype: str, shape: Iterable[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), **more}


def _post(path: str, asked: Any, status: int = 200, holds: bytes = b"") -> Request:
    line = f"POST /v2/models/{path}"
    return Request(message(line, orjson.dumps(asked)), status, holds)


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
    line = f"POST /v2/models/{model}/infer"
    sent = message(line, head + tail, f"Inference-Header-Content-Length: {len(head)}")
    first, second = arrays
    return Request(sent, 200, (first + second).tobytes() + (first - second).tobytes())


def _json(model: str, arrays: tuple[Array, Array]) -> Request:
    inputs = [
        _described(f"INPUT{n}", "INT32", array.shape, data=array.ravel().tolist())
        for n, array in enumerate(arrays)
    ]
    holds = orjson.dumps((arrays[0] + arrays[1]).ravel().tolist())
    return _post(f"{model}/infer", {"id": "soak", "inputs": inputs}, holds=holds)


def binary_of_ones(model: str, rows: int = 0) -> Request:
    """To a model that adds and subtracts; without a batch dimension where there are no rows."""
    ones = np.ones((rows, 16) if rows else 16, np.int32)
    head, tail = _binary_parts([ones, ones])
    line = f"POST /v2/models/{model}/infer"
    sent = message(line, head + tail, f"Inference-Header-Content-Length: {len(head)}")
    return Request(sent, 200, b'"OUTPUT1"')


def sequence_part(number: int, value: int, *, start: bool, end: bool) -> Request:
    """One request of a sequence; the model adds one at its start."""
    parameters = {"sequence_id": number, "sequence_start": start, "sequence_end": end}
    asked = {
        "parameters": parameters,
        "inputs": [_described("INPUT", "INT32", (1, 1), data=[value])],
    }
    return _post("simple_sequence/infer", asked, holds=b'"data":[%d]' % (value + start))


def from_region(region: str) -> Request:
    """Inputs from a region that holds zeros."""
    place = {"shared_memory_region": region, "shared_memory_byte_size": 64}
    inputs = [_described(f"INPUT{n}", "INT32", (1, 16), parameters=place) for n in range(2)]
    return _post("simple/infer", {"inputs": inputs}, holds=orjson.dumps([0] * 16))


def _many_strings() -> Request:
    """So many that they are taken apart in a thread."""
    data = b"".join(len(text).to_bytes(4, "little") + text for text in [b"x" * 100] * 1000)
    return _bytes("identity_bytes", "INPUT0", (1, 1000), data, data)


def _image_tensor(model: str, image: bytes) -> Request:
    data = len(image).to_bytes(4, "little") + image
    return _bytes(model, "images", (1, 1), data, b"num_detections")


def _bytes(model: str, name: str, shape: tuple[int, int], data: bytes, holds: bytes) -> Request:
    size = {"parameters": {"binary_data_size": len(data)}}
    inputs = [_described(name, "BYTES", shape, **size)]
    head = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    length = f"Inference-Header-Content-Length: {len(head)}"
    return Request(message(f"POST /v2/models/{model}/infer", head + data, length), 200, holds)


def _ensemble(first: Array, second: Array) -> Request:
    # Sum and difference of sum and difference.
    plain = _binary("simple_ensemble", (first, second))
    return Request(plain.sent, 200, (2 * first).tobytes() + (2 * second).tobytes())


def _compressed(first: Array, second: Array) -> Request:
    head, tail = _binary_parts((first, second))
    line = "POST /v2/models/simple/infer"
    length = f"Inference-Header-Content-Length: {len(head)}"
    sent = message(line, gzip.compress(head + tail), length, "Content-Encoding: gzip")
    return Request(sent, 200, (first + second).tobytes())


def _identity(datatype: str, array: Array) -> Request:
    size = {"parameters": {"binary_data_size": array.nbytes}}
    inputs = [_described("INPUT0", datatype, array.shape, **size)]
    head = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    line = f"POST /v2/models/identity_{datatype.lower()}/infer"
    length = f"Inference-Header-Content-Length: {len(head)}"
    return Request(message(line, head + array.tobytes(), length), 200, array.tobytes())


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
        Request(message("POST /v2/models/simple/infer", b"{"), 500, b"failed to parse"),
        Request(message("GET /v2/models/simple/infer"), 405, b"Method Not Allowed"),
        Request(message("GET /foo"), 404, b"Not Found"),
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
    return [Request(message(f"GET {p}"), 200, holds) for p, holds in expected.items()]


def _infer_message(model: str, arrays: list[Array]) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model)
    for n, array in enumerate(arrays):
        message.inputs.add(name=f"INPUT{n}", datatype="INT32", shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    return message.SerializeToString()
