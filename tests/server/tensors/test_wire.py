"""BYTES on the wire."""

import numpy as np
import pytest
from tests.server.scheduling.served import strings

from fovea_preprocess.errors import InvalidRequest
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
