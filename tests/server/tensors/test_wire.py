"""BYTES on the wire."""

import numpy as np
import pytest
from tests.server.scheduling.served import strings

from fovea_preprocess.errors import InvalidRequest
from fovea_server.dataplane.top_classes import check_class_type, classify
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.wire import decode_strings, encode_strings


def test_what_is_encoded_is_decoded_again() -> None:
    elements = strings(b"", b"a\0b", "hé".encode(), b"\xff")

    wire = encode_strings(elements.reshape(2, 2))

    assert wire[:4] == bytes(4)
    np.testing.assert_array_equal(decode_strings(memoryview(wire), 4), elements)


@pytest.mark.parametrize(
    ("wire", "count", "text"),
    [
        (b"\1\0\0\0a\1\0", 2, "element byte size indicator exceeds the end of the buffer."),
        (b"\5\0\0\0ab", 1, "incomplete string data for the tensor, expecting string of length 5 "
         "but only 2 bytes available"),
        (b"\1\0\0\0a", 2, "expected 2 string elements for the tensor, got 1"),
        (b"", 1, "expected 1 string elements for the tensor, got 0"),
        (b"\1\0\0\0a\1\0\0\0b\xff\xff", 1, "unexpected number of string elements 2 for the "
         "tensor, expecting 1"),
    ],
)  # fmt: skip
def test_what_is_broken_is_told(wire: bytes, count: int, text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_strings(memoryview(wire), count)
    assert str(refused.value) == text


@pytest.mark.parametrize("count", [65_535, 65_536, 200_000])
def test_many_elements(count: int) -> None:
    elements = strings(*(b"%d" % index for index in range(count)))

    wire = memoryview(encode_strings(elements))

    assert decode_strings(wire, count).tolist() == elements.tolist()
    with pytest.raises(InvalidRequest, match=f"expected {count + 1} string elements.*got {count}"):
        decode_strings(wire, count + 1)
    with pytest.raises(InvalidRequest, match=f"of string elements {count} for"):
        decode_strings(wire, count - 1)


# The best classes of an output, as text.


def classes(array, datatype: str, k: int, labels=None, *, batched: bool = True) -> OutputTensor:
    return classify(OutputTensor("Y", datatype, np.asarray(array)), k, labels, batched=batched)


def test_whole_numbers_are_told_as_such():
    found = classes(np.arange(1, 17, dtype=np.int32)[None], "INT32", 2)
    assert (found.datatype, found.shape) == ("BYTES", (1, 2))
    assert found.array.tolist() == [[b"16:15", b"15:14"]]


def test_fractions_are_told_as_c_tells_them():
    found = classes(np.array([[0.1, 2.5, -1.0, np.inf]], np.float32), "FP32", 4)
    assert found.array.tolist() == [[b"inf:3", b"2.500000:1", b"0.100000:0", b"-1.000000:2"]]
    assert classes(np.array([[1 / 3]]), "FP64", 1).array.tolist() == [[b"0.333333:0"]]


def test_each_row_has_its_own_classes():
    found = classes(np.array([[1, 3, 2], [9, 8, 7]], np.uint8), "UINT8", 1)
    assert found.array.tolist() == [[b"3:1"], [b"9:0"]]


def test_without_a_batch_all_dimensions_are_classes():
    found = classes(np.array([[1, 4], [3, 2]], np.int64), "INT64", 2, batched=False)
    assert found.shape == (2,)
    assert found.array.tolist() == [b"4:1", b"3:2"]


def test_dimensions_behind_the_batch_are_taken_as_one():
    found = classes(np.arange(12, dtype=np.int16).reshape(2, 3, 2), "INT16", 1)
    assert found.array.tolist() == [[b"5:5"], [b"11:5"]]


def test_more_than_there_are_is_all_of_them():
    assert classes(np.array([[2, 1]], np.int8), "INT8", 10).shape == (1, 2)


def test_the_first_of_many_equal_values_are_told():
    found = classes(np.array([[5, 1, 5, 9, 5, 5, 0]], np.int32), "INT32", 3)
    assert found.array.tolist() == [[b"9:3", b"5:0", b"5:2"]]


def test_the_order_is_that_of_a_whole_sort():
    row = np.random.default_rng(0).integers(0, 50, 1000).astype(np.float32)
    told = [int(one.split(b":")[1]) for one in classes(row[None], "FP32", 300).array[0]]
    assert told == sorted(range(1000), key=lambda index: (-row[index], index))[:300]


def test_equal_values_come_in_order_and_what_is_no_number_last():
    found = classes(np.array([[1, np.nan, 3, 3, 1]], np.float32), "FP32", 5)
    assert [one.split(b":")[1] for one in found.array[0]] == [b"2", b"3", b"0", b"4", b"1"]


def test_the_smallest_and_largest_numbers_keep_their_order():
    for dtype, name in ((np.int8, "INT8"), (np.uint64, "UINT64"), (np.int64, "INT64")):
        limits = np.iinfo(dtype)
        found = classes(np.array([[limits.min, limits.max, 1]], dtype), name, 3)
        order = [f"{limits.max}:1", "1:2", f"{limits.min}:0"]
        assert [one.decode() for one in found.array[0]] == order


def test_labels_are_told_where_there_are_some():
    found = classes(np.array([[1, 2, 3, 4]], np.int32), "INT32", 4, ("cat", "", "bus:red"))
    assert found.array.tolist() == [[b"4:3", b"3:2:bus:red", b"2:1", b"1:0:cat"]]


def test_rows_may_be_none():
    assert classes(np.empty((0, 4), np.float32), "FP32", 2).shape == (0, 2)
    assert classes(np.empty((2, 0), np.float32), "FP32", 2).shape == (2, 0)


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL", "FP16", "BF16"])
def test_types_that_triton_does_not_sort_are_refused_in_its_words(datatype):
    with pytest.raises(InvalidRequest) as refused:
        check_class_type(datatype)
    assert str(refused.value) == (
        f"class result not available for output due to unsupported type '{datatype}'"
    )
