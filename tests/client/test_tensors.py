"""Answers with tensors that are not what they should be."""

import json

import numpy as np
import pytest
from httpx import Response

from fovea_client import ServerError, UnexpectedAnswer, _tensors


def answer(datatype, shape, data, *, size=None, before=None):
    size = len(data) if size is None else size
    output = {"name": "out", "datatype": datatype, "shape": shape}
    output["parameters"] = {"binary_data_size": size}
    text = json.dumps({"model_name": "m", "outputs": [output]}).encode()
    before = str(len(text)) if before is None else before
    headers = {"inference-header-content-length": before}
    return Response(200, headers=headers, content=text + data)


def test_it_is_read():
    got = _tensors.outputs(answer("FP32", [1, 2], np.float32([1, 2]).tobytes()))
    assert got["out"].tolist() == [[1, 2]]
    strings = b"\1\0\0\0a\0\0\0\0"
    assert _tensors.outputs(answer("BYTES", [2], strings))["out"].tolist() == [b"a", b""]


@pytest.mark.parametrize(
    "response",
    [
        answer("FP32", [1, 2], b"1234567"),
        answer("FP32", [1, 2], b"1234"),
        answer("FP32", [1, 2], b"12345678", size=4),
        answer("FP32", [1], b"1234", size="4"),
        answer("FP32", [1], b"1234", size=-1),
        answer("FP32", [1], b"12345678", size=4),
        answer("FP32", ["a"], b"1234"),
        answer("FP31", [1], b"1234"),
        answer("BYTES", [1], b"\2\0\0\0a"),
        answer("BYTES", [1], b"\2\0"),
        answer("BYTES", [2], b"\1\0\0\0a"),
        answer("BF16", [1], b"123"),
        answer("FP32", [1], b"1234", before="many"),
        answer("FP32", [1], b"1234", before="9999"),
        answer("FP32", [1], b"1234", before="-4"),
        Response(200, content=b"<html>"),
        Response(200, content=b"[]"),
        Response(200, json={"outputs": [{"name": "out", "datatype": "FP32", "shape": [1]}]}),
    ],
    ids=str,
)
def test_what_is_no_answer_of_the_protocol_is_unexpected(response):
    with pytest.raises(UnexpectedAnswer):
        _tensors.outputs(response)


def test_errors_of_the_protocol_have_no_code():
    with pytest.raises(ServerError) as caught:
        _tensors.outputs(Response(400, json={"error": "unexpected shape"}))
    assert (caught.value.code, caught.value.message) == ("http_400", "unexpected shape")
