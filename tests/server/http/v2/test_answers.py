"""Answers of v2: elements of tensors as JSON has them, and encodings."""

import asyncio
import json
import zlib

import ml_dtypes
import numpy as np
import pytest

from fovea_preprocess.errors import InvalidRequest, MalformedJson
from fovea_server.http.messages import Response
from fovea_server.http.v2.answers import compress
from fovea_server.http.v2.tensor_json import data_json, elements_of
from fovea_server.tensors.messages import OutputTensor


def output(datatype: str, array) -> OutputTensor:
    return OutputTensor("OUTPUT", datatype, array)


def written(tensor: OutputTensor) -> bytes:
    return b"".join(data_json(tensor))


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("BOOL", np.array([[True], [False]])),
        ("INT8", np.array([-128, 127], np.int8)),
        ("UINT64", np.array([0, 2**64 - 1], np.uint64)),
        ("FP32", np.array([[0.1, 3.4e38, -1e-45]], np.float32)),
        ("FP64", np.array([1e300, -0.0])),
        ("BYTES", np.array([b"", 'é\n"'.encode()], object)),
    ],
)
def test_numbers_and_strings_survive_the_way_there_and_back(datatype, array):
    text = json.loads(written(output(datatype, array)))
    read = elements_of("INPUT", datatype, text, array.size)
    assert read.dtype == array.dtype
    assert read.tolist() == array.ravel().tolist()


def test_what_is_no_number_is_written_as_triton_does():
    array = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert written(output("FP32", array)) == b"[NaN,Infinity,-Infinity,1.0]"


def test_many_elements_are_one_array():
    array = np.arange(100_000, dtype=np.float32)
    array[::1000] = np.nan
    found = json.loads(written(output("FP32", array)))
    assert np.array_equal(np.array(found, np.float32), array, equal_nan=True)


def test_bytes_that_are_no_text_are_written_as_they_are():
    array = np.array([b"a\x00\xff"], object)
    assert written(output("BYTES", array)) == b'["a\\u0000\xff"]'


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_halves_do_not_travel_as_json(datatype):
    kind = np.float16 if datatype == "FP16" else ml_dtypes.bfloat16
    with pytest.raises(InvalidRequest, match=f"sending {datatype} data via JSON"):
        data_json(output(datatype, np.zeros(1, kind)))
    with pytest.raises(InvalidRequest, match=f"receiving {datatype} data via JSON"):
        elements_of("INPUT", datatype, [1.0], 1)


def test_a_deep_list_costs_no_more_than_its_elements():
    data: list[object] = [1]
    for _ in range(99):
        data = [data, 1]
    assert elements_of("INPUT", "INT32", data, 100).tolist() == [1] * 100


@pytest.mark.parametrize("data", [[1] * 3, [[1], [2], [3]], [[1, 2], []]])
def test_the_number_of_elements_is_the_shapes(data):
    with pytest.raises(MalformedJson, match="Shape does not match true shape of 'data' field"):
        elements_of("INPUT", "INT32", data, 4)


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        (b"gzip", b"gzip"),
        (b"deflate", b"deflate"),
        (b"deflate, gzip", b"deflate"),
        (b"deflate;q=0.5, gzip;q=0.6", b"gzip"),
        (b"br;q=1.0, gzip;q=0.1", b"gzip"),
        (b"gzip;q=0", None),
        (b"gzip;q=nonsense", None),
        (b"identity, gzip;q=0.9", None),
        (b"*", None),
        (b"\xff,,;q=,", None),
    ],
)
def test_an_answer_gets_the_best_encoding_that_is_known(accepted, encoding):
    body = [b"head", memoryview(bytes(100_000))]
    answer = Response(body=list(body))
    asyncio.run(compress(answer, accepted))
    if encoding is None:
        assert answer.body == body
        assert answer.headers == []
    else:
        assert answer.headers == [(b"content-encoding", encoding)]
        unpacked = zlib.decompress(b"".join(answer.body), 32 + zlib.MAX_WBITS)
        assert unpacked == b"".join(body)
