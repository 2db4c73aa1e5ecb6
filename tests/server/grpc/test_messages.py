"""Requests and answers in protobuf: what Triton's infer_handler.cc takes, refuses and writes."""

import ml_dtypes
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import InvalidRequest, NotFound
from fovea_server.grpc.infer_request import parse_infer, read_request
from fovea_server.grpc.inference import response_bytes, streamed_bytes, streamed_error
from fovea_server.grpc.models import version_of
from fovea_server.tensors.messages import InferResponse, OutputTensor
from fovea_server.tensors.shared_memory import CudaSharedMemory, SharedRegions, SystemSharedMemory
from fovea_server.tensors.wire import encode_strings

NO_REGIONS = SharedRegions(SystemSharedMemory(False), CudaSharedMemory(False))


def request_of(datatype="INT32", shape=(2,), **fields):
    message = messages.ModelInferRequest(model_name="m", **fields)
    message.inputs.add(name="x", datatype=datatype, shape=shape)
    return message


def read(message, version=None):
    return read_request(parse_infer(message.SerializeToString()), version, NO_REGIONS)[0]


@pytest.mark.parametrize(
    ("datatype", "field", "sent", "want"),
    [
        ("BOOL", "bool_contents", [True, False], np.array([True, False])),
        ("INT8", "int_contents", [-1, 300], np.array([-1, 44], np.int8)),
        ("INT16", "int_contents", [-1, 300], np.array([-1, 300], np.int16)),
        ("INT32", "int_contents", [-1, 2], np.array([-1, 2], np.int32)),
        ("INT64", "int64_contents", [-(2**60), 2], np.array([-(2**60), 2], np.int64)),
        ("UINT8", "uint_contents", [255, 256], np.array([255, 0], np.uint8)),
        ("UINT16", "uint_contents", [1, 2], np.array([1, 2], np.uint16)),
        ("UINT32", "uint_contents", [2**32 - 1, 2], np.array([2**32 - 1, 2], np.uint32)),
        ("UINT64", "uint64_contents", [2**64 - 1, 2], np.array([2**64 - 1, 2], np.uint64)),
        ("FP32", "fp32_contents", [0.5, 2.0], np.array([0.5, 2], np.float32)),
        ("FP64", "fp64_contents", [0.1, 2.0], np.array([0.1, 2], np.float64)),
        ("BYTES", "bytes_contents", [b"a", b""], np.array([b"a", b""], object)),
    ],
)
def test_typed_contents(datatype, field, sent, want):
    message = request_of(datatype)
    getattr(message.inputs[0].contents, field).extend(sent)
    data = read(message).inputs[0].data
    assert data.dtype == want.dtype
    assert data.tolist() == want.tolist()


def test_contents_of_no_elements():
    message = request_of("FP32", (0,))
    message.inputs[0].contents.SetInParent()
    assert bytes(read(message).inputs[0].data) == b""


def test_raw_contents_are_handed_out_in_order():
    message = request_of(raw_input_contents=[b"12345678", b"abcd"])
    message.inputs.add(name="y", datatype="INT32", shape=(1,))
    assert [bytes(tensor.data) for tensor in read(message).inputs] == [b"12345678", b"abcd"]


def set_parameters(parameters, **given):
    for name, value in given.items():
        field = "string_param" if isinstance(value, str) else "int64_param"
        setattr(parameters[name], field, value)


REGION = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
RAW = {"raw_input_contents": [b""]}
# What is added to an input of two integers without data, and to an output; and Triton's words.
CONTRADICTIONS = [
    (
        {"int_contents": [1], "fp32_contents": [1]},
        "unexpected explicit tensor data for input tensor 'x' for model 'm', binary data was "
        "already supplied.",
    ),
    (
        {**RAW, "int_contents": [1]},
        "contents field must not be specified when using raw_input_contents for 'x' for model 'm'",
    ),
    (
        {"fp32_contents": [1]},
        "unexpected explicit tensor data for input tensor 'x' for model 'm' of type 'FP32', "
        "expected datatype 'INT32'",
    ),
    (
        {"input": {"shared_memory_offset": 1}},
        "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter "
        "for tensor 'x'",
    ),
    (
        {"input": {"shared_memory_region": "r"}},
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
        "parameter for tensor 'x'",
    ),
    (
        {"input": {"shared_memory_region": 1}},
        "invalid value type for 'shared_memory_region' parameter for tensor 'x', expected "
        "string_param.",
    ),
    (
        {"input": REGION, "fp32_contents": [1]},
        "unexpected 'content' provided when using shared memory for input tensor 'x' for model 'm'",
    ),
    (
        {**RAW, "output": {**REGION, "classification": 1}},
        "output can't set both 'shared_memory_region' and 'classification'",
    ),
    (
        {**RAW, "output": {"classification": 0}},
        "invalid value for 'classification' parameter, expected >= 1",
    ),
]


@pytest.mark.parametrize(("given", "told"), CONTRADICTIONS)
def test_what_contradicts_itself_is_refused(given, told):
    message = request_of()
    for name, value in given.items():
        if name == "input":
            set_parameters(message.inputs[0].parameters, **value)
        elif name == "output":
            set_parameters(message.outputs.add(name="out").parameters, **value)
        else:
            owner = message if name in RAW else message.inputs[0].contents
            getattr(owner, name).extend(value)
    with pytest.raises(InvalidRequest) as caught:
        read(message)
    assert str(caught.value) == told


def test_parameters_go_where_they_belong():
    message = request_of(raw_input_contents=[b""], id="7")
    given = message.parameters
    given["sequence_id"].int64_param = -1
    given["sequence_start"].bool_param = True
    given["priority"].uint64_param = 2
    given["timeout"].int64_param = 1500
    given["triton_enable_empty_final_response"].bool_param = True
    given["conf"].double_param = 0.25
    given["agnostic"].bool_param = True
    request = read(message)
    assert (request.id, request.sequence_id, request.sequence_start) == ("7", 2**64 - 1, True)
    assert (request.priority, request.timeout_us) == (2, 1500)
    assert request.parameters == {"conf": 0.25, "agnostic": True}


@pytest.mark.parametrize(
    ("name", "field", "value", "told"),
    [
        (
            "sequence_id",
            "bool_param",
            True,
            "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
        ),
        (
            "timeout",
            "string_param",
            "1",
            "invalid value type for 'timeout' parameter, expected int64_param.",
        ),
        ("priority", "int64_param", -1, "invalid value for 'priority', expected value >= 0."),
        (
            "triton_secret",
            "bool_param",
            True,
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the "
            "following keys starting with 'triton_' are allowed: "
            "triton_enable_empty_final_response ",
        ),
    ],
)
def test_parameters_of_another_type(name, field, value, told):
    message = request_of(raw_input_contents=[b""])
    setattr(message.parameters[name], field, value)
    with pytest.raises(InvalidRequest) as caught:
        read(message)
    assert str(caught.value) == told


def test_an_output_that_is_named_twice_is_asked_for_once():
    message = request_of(raw_input_contents=[b""])
    message.outputs.add(name="out").parameters["classification"].int64_param = 3
    message.outputs.add(name="out")
    assert [(o.name, o.classification) for o in read(message).outputs] == [("out", 3)]


@pytest.mark.parametrize(("text", "version"), [("", None), ("3", 3), (" 4x", 4), ("0", 0)])
def test_versions(text, version):
    assert version_of(text) == version


@pytest.mark.parametrize("text", ["x", "-1", "9" * 20, "9" * 5000, "v1"])
def test_no_version(text):
    with pytest.raises(InvalidRequest, match=f"'{text}'.*should be an integral value > 0"):
        version_of(text)


def array_of(kind, shape):
    return np.arange(np.prod(shape)).astype(kind).reshape(shape)


WORDS = np.array([[b"one", b""]], object)
OUTPUTS = [
    OutputTensor("a", "INT32", array_of(np.int32, (2, 3))),
    OutputTensor("b", "FP16", array_of(np.float16, (4,))),
    OutputTensor("c", "BF16", array_of(ml_dtypes.bfloat16, (1, 2))),
    OutputTensor("d", "BYTES", WORDS),
    OutputTensor("e", "FP32", array_of(np.float32, (0, 4))),
    OutputTensor("f", "UINT8", array_of(np.uint8, (1, 300, 100))),
]


def test_an_answer_is_what_protobuf_would_write():
    response = InferResponse("m", "2", OUTPUTS, "7", {"n": 3, "yes": True, "f": 0.5, "s": "t"})
    data = response_bytes(response, {})
    parsed = messages.ModelInferResponse.FromString(data)
    assert (parsed.model_name, parsed.model_version, parsed.id) == ("m", "2", "7")
    assert parsed.parameters["n"].int64_param == 3
    assert parsed.parameters["yes"].bool_param
    assert parsed.parameters["f"].double_param == 0.5
    assert parsed.parameters["s"].string_param == "t"
    assert [(o.name, o.datatype, tuple(o.shape)) for o in parsed.outputs] == [
        (o.name, o.datatype, o.shape) for o in OUTPUTS
    ]
    assert list(parsed.raw_output_contents) == [
        encode_strings(WORDS) if o.datatype == "BYTES" else o.array.tobytes() for o in OUTPUTS
    ]
    streamed = messages.ModelStreamInferResponse.FromString(streamed_bytes(data))
    assert streamed.infer_response == parsed
    assert streamed.error_message == ""


def test_a_streamed_error_keeps_the_id():
    answer = messages.ModelStreamInferResponse.FromString(streamed_error("9", "why"))
    assert (answer.error_message, answer.infer_response.id) == ("why", "9")
    assert answer.infer_response.parameters["triton_final_response"].bool_param


def test_many_typed_contents():
    message = request_of("INT16", (150_000,))
    sent = np.arange(150_000) % 30_000
    message.inputs[0].contents.int_contents.extend(sent.tolist())
    np.testing.assert_array_equal(read(message).inputs[0].data, sent.astype(np.int16))


@pytest.mark.parametrize("of", ["inputs", "outputs"])
def test_an_unknown_region(of):
    message = request_of()
    if of == "outputs":
        message.raw_input_contents.append(b"")
        message.outputs.add(name="out")
    set_parameters(getattr(message, of)[0].parameters, **REGION)
    with pytest.raises(NotFound, match="Unable to find shared memory region: 'r'"):
        read(message)


# Large messages are taken apart by hand, as protobuf would.


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
    with pytest.raises(InvalidRequest):
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
    with pytest.raises(InvalidRequest, match="1024"):
        parse_infer(large().SerializeToString() + more)
