"""Documents with long arrays are read as others are."""

import json
import random

import numpy as np
import pytest

from fovea_preprocess.errors import MalformedJson
from fovea_server.http.v2.long_array import parse_long
from fovea_server.http.v2.tensor_json import elements_of

COUNT = 60_000


def read(text: bytes, datatype: str, count: int | None = COUNT):
    document, arrays = parse_long(text, ("data",))
    assert len(arrays) == 1, "set aside"
    return document, elements_of("INPUT", datatype, arrays[document["data"]], count)


def document(data: object, **kwargs: object) -> bytes:
    return json.dumps(
        {"id": '"data": [', "data": data, "more": [1, {"data": [2]}]}, **kwargs
    ).encode()


@pytest.mark.parametrize("shape", [(COUNT,), (6, 10_000), (2, 30_000, 1), (300, 10, 20)])
@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " : "), (",\n", ":\t")])
def test_numbers(shape, separators):
    sent = np.arange(COUNT, dtype=np.float32).reshape(shape) / 7
    found, array = read(document(sent.tolist(), separators=separators), "FP32")
    assert np.array_equal(array, sent.ravel())
    assert found["id"] == '"data": ['
    assert found["more"] == [1, {"data": [2]}]


def test_strings_with_anything_in_them():
    chance = random.Random(3)
    sent = ["".join(chance.choices('a,"[]{}\\ é😀\n', k=chance.randrange(9))) for _ in range(COUNT)]
    sent[7] = "long," * 100_000
    _, array = read(document(sent), "BYTES")
    assert array.tolist() == [text.encode() for text in sent]


def test_irregular_nesting_and_what_is_no_number():
    sent = [[float("nan"), 1.0], [], [[2.0], 3.0], -float("inf")] * (COUNT // 5)
    _, array = read(document(sent), "FP32")
    assert array[:5].tolist()[1:] == [1.0, 2.0, 3.0, -float("inf")]
    assert np.array_equal(array.reshape(-1, 5)[0], array.reshape(-1, 5)[-1], equal_nan=True)


@pytest.mark.parametrize("fault", [b",,", b",]", b"[,", b"}", b"x", b'"', b",[", b"]", b",\\"])
@pytest.mark.parametrize("nested", [False, True])
def test_faults_are_found_wherever_they_are(fault, nested):
    data = np.arange(COUNT).reshape((60, 1000) if nested else COUNT).tolist()
    good = document(data, separators=(",", ":"))
    begin, end = good.index(b"[0" if not nested else b"[[0") + 2, good.index(b'],"more') - 1
    for at in np.linspace(begin, end, 40).astype(int).tolist():
        at = good.index(b",", at - 8)
        bad = good[:at] + fault + good[at + 1 :]
        with pytest.raises(json.JSONDecodeError):
            json.loads(bad)
        with pytest.raises(MalformedJson):
            read(bad, "INT64")


@pytest.mark.parametrize("count", [COUNT - 1, COUNT + 1])
def test_the_number_of_elements_is_the_shapes(count):
    with pytest.raises(MalformedJson, match="Shape does not match true shape of 'data' field"):
        read(document(list(range(COUNT))), "INT32", count)


def test_nesting_has_an_end():
    deep = "[" * 101 + "1" + "]" * 101
    with pytest.raises(MalformedJson, match="nested deeper than 100"):
        read(f'{{"data":[{",".join([deep] * 2000)}]}}'.encode(), "INT32", None)


def test_what_is_no_tensor_has_so_many_values_and_no_more():
    with pytest.raises(MalformedJson, match="more than 262144 values; send tensors that large"):
        parse_long(b'{"other":[' + b"1," * 300_000 + b"1]}", ("data",))


def test_an_error_behind_a_long_array_is_found_where_it_is() -> None:
    numbers = b"[" + b"1," * 1_000_000 + b"1]"
    text = b'{"inputs":[{"name":"x","data":' + numbers + b'}], "parameters": nothing}'

    with pytest.raises(MalformedJson, match=rf" at {text.index(b'nothing')}$"):
        parse_long(text, ("data",))
