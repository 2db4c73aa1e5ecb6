"""Infer requests off the wire: large ones are taken apart by hand, as protobuf would."""

import pytest
from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import InvalidRequest
from fovea_server.grpc.infer_request import parse_infer


def large(*more: bytes) -> messages.ModelInferRequest:
    message = messages.ModelInferRequest(model_name="m", id="7")
    message.parameters["n"].int64_param = 3
    message.inputs.add(name="x", datatype="UINT8", shape=(100_000,))
    message.outputs.add(name="out")
    message.raw_input_contents.extend([bytes(range(250)) * 400, *more])
    return message


def test_raw_contents_are_views_and_all_else_is_there():
    message = large(b"", b"x")
    found = parse_infer(message.SerializeToString())
    assert [bytes(part) for part in found.raw] == list(message.raw_input_contents)
    assert all(isinstance(part, memoryview) for part in found.raw)
    message.ClearField("raw_input_contents")
    assert found.fields == message
    assert found.size == message.ByteSize()


def test_small_messages_are_left_to_protobuf():
    message = messages.ModelInferRequest(model_name="m", raw_input_contents=[b"abc"])
    found = parse_infer(message.SerializeToString())
    assert (found.fields, list(found.raw)) == (message, [b"abc"])


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\x3a",
        lambda data: data + b"\x3a" + b"\xff" * 11,
        lambda data: data + b"\x3a\xff\xff\xff\xff\x07",
        lambda data: b"\xff" * 100_000,
    ],
)
def test_what_is_damaged_is_refused(damage):
    with pytest.raises(InvalidRequest, match="the bytes of the request are no"):
        parse_infer(damage(large().SerializeToString()))


def test_fields_of_later_versions_are_passed_over():
    data = large().SerializeToString()
    number, fixed = bytes([15 << 3, 1]), bytes([15 << 3 | 5]) + b"abcd"
    found = parse_infer(data + number + fixed)
    assert (len(found.raw), found.fields.inputs) == (1, large().inputs)


def packed(field: int, value: bytes) -> bytes:
    size = bytes([0x80 | len(value) & 0x7F, 0x80 | len(value) >> 7 & 0x7F, len(value) >> 14])
    return bytes([field << 3 | 2]) + size + value


@pytest.mark.parametrize(
    "more",
    [
        *(packed(field, b"") * 1100 for field in (4, 5, 6, 7)),
        # Behind a field of a later version.
        bytes([15 << 3, 1]) + packed(5, b"") * 1100,
        # Dimensions of one input, packed and one by one; parameters of one, and of an output.
        *(packed(5, packed(3, bytes(1100))), packed(5, bytes([3 << 3, 1]) * 1100)),
        *(packed(field, packed(4 - 2 * (field == 6), b"") * 1100) for field in (5, 6)),
    ],
)
def test_more_fields_than_there_may_be_are_refused_before_they_are_parsed(more):
    with pytest.raises(InvalidRequest, match="at most 1024"):
        parse_infer(large().SerializeToString() + more)
