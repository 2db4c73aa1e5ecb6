"""Requests as they go over the wire."""

import numpy as np
import orjson
import pytest

from fovea_preprocess.errors import InvalidOption, UnsupportedModel
from fovea_server.bench.requests import image_requests, parse_shapes, tensor_request
from fovea_server.bench.target import Target

URL = "https://example.org:8443/models/"
MODEL = Target(URL, "m", None)


def split(request: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), body


def metadata(*inputs: tuple[str, str, list[int]]) -> dict:
    return {"inputs": [{"name": n, "datatype": d, "shape": s} for n, d, s in inputs]}


def test_images_are_bodies_behind_the_servers_own_path():
    requests = image_requests(Target(URL, "a b", 2), [b"one", b"three"], {"conf": 0.001})
    first, headers, body = split(requests[1])
    assert first == "POST /models/v1/models/a%20b/versions/2/predict?conf=0.001 HTTP/1.1"
    assert headers["Host"] == "example.org:8443"
    assert (headers["Content-Length"], body) == ("5", b"three")


def test_tensors_are_of_the_models_types_and_sizes():
    known = metadata(
        *(("a", "FP32", [-1, 3]), ("b", "BF16", [2]), ("c", "BOOL", [4]), ("d", "INT8", [-1, 2])),
        ("e", "BYTES", [3]),
    )
    request = tensor_request(MODEL, known, {"d": (5, 2)})
    first, headers, body = split(request)
    assert first == "POST /models/v2/models/m/infer HTTP/1.1"
    assert int(headers["Content-Length"]) == len(body)
    length = int(headers["Inference-Header-Content-Length"])
    document = orjson.loads(body[:length])
    assert [each["shape"] for each in document["inputs"]] == [[1, 3], [2], [4], [5, 2], [3]]
    sizes = [each["parameters"]["binary_data_size"] for each in document["inputs"]]
    assert sizes[:4] == [12, 4, 4, 10]
    assert sum(sizes) == len(body) - length
    values = np.frombuffer(body[length:][:12], np.float32)
    assert np.isfinite(values).all()
    assert values.any()


def test_a_size_that_varies_must_be_said():
    known = metadata(("x", "FP32", [-1, 3, -1, 640]))
    with pytest.raises(InvalidOption, match="--shape"):
        tensor_request(MODEL, known, {})
    for shape in ((1, 3, 640), (1, 4, 5, 640)):
        with pytest.raises(InvalidOption):
            tensor_request(MODEL, known, {"x": shape})
    assert tensor_request(MODEL, known, {"x": (1, 3, 5, 640)})


def test_an_unknown_type_is_named():
    with pytest.raises(UnsupportedModel, match="FP8"):
        tensor_request(MODEL, metadata(("x", "FP8", [1])), {})


def test_shapes_are_parsed():
    assert parse_shapes(["a:1,2", "b:c:3"]) == {"a": (1, 2), "b:c": (3,)}
    for text in ("a", "a:", "a:1,", "a:-1", ":1"):
        with pytest.raises(InvalidOption, match="NAME:DIMS"):
            parse_shapes([text])
