"""Requests that do not fit, in Triton's words."""

import numpy as np
import pytest
from tests.server.scheduling.served import rows, strings, wire

from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidRequest
from fovea_server.tensors.check import RequestCheck
from fovea_server.tensors.messages import InferRequest, InputTensor, RequestedOutput
from fovea_server.tensors.signature import ModelSignature, ModelTensor

UNKNOWN = "[request id: <id_unknown>] "
NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)


def tensor(name: str, *shape: int, datatype: str = "INT32", optional: bool = False) -> ModelTensor:
    return ModelTensor(name, datatype, shape, optional)


OUTPUTS = (tensor("OUTPUT0", -1, 16), tensor("OUTPUT1", -1, 16))
SIMPLE = ModelSignature((tensor("INPUT0", -1, 16), tensor("INPUT1", -1, 16)), OUTPUTS, 8)
OPTIONAL = ModelSignature(
    (
        *(tensor(f"INPUT{n}", -1, datatype="FP32") for n in range(3)),
        tensor("INPUT3", -1, datatype="FP32", optional=True),
    ),
    (tensor("OUTPUT0", 1, datatype="FP32"),),
    0,
)
STRINGS = ModelSignature(
    tuple(tensor(f"INPUT{n}", -1, 16, datatype="BYTES") for n in range(2)), (), 8
)
ANY = ModelSignature((tensor("INPUT0", -1, -1, datatype="FP32"),), (), 0)


def refusal(
    signature: ModelSignature, *inputs: InputTensor, outputs: str = "", id: str = ""
) -> str:
    request = InferRequest(
        "simple", None, list(inputs), [RequestedOutput(name) for name in outputs.split()], id
    )
    with pytest.raises(InvalidRequest) as refused:
        RequestCheck("simple", signature)(request)
    return str(refused.value)


def two(array: Array) -> list[InputTensor]:
    return [wire("INPUT0", array), wire("INPUT1", array)]


def sent(*shape: int, size: int = 64, datatype: str = "INT32", name: str = "INPUT0") -> InputTensor:
    return InputTensor(name, datatype, shape, memoryview(bytes(size)))


def test_what_fits_is_not_copied() -> None:
    data = rows(5, 2).tobytes()
    both = [InputTensor(name, "INT32", (2, 16), memoryview(data)) for name in ("INPUT0", "INPUT1")]

    checked = RequestCheck("simple", SIMPLE)(InferRequest("simple", None, both))

    assert checked.rows == 2
    np.testing.assert_array_equal(checked.feeds["INPUT0"], rows(5, 2))
    assert np.shares_memory(checked.feeds["INPUT1"], np.frombuffer(data, np.int32))


def test_an_unknown_output() -> None:
    text = refusal(SIMPLE, *two(rows(0)), outputs="OUTPUT0 OUTPUT9")
    assert text == "unexpected inference output 'OUTPUT9' for model 'simple'"


def test_an_unknown_input() -> None:
    text = refusal(SIMPLE, wire("INPUT0", rows(0)), wire("INPUT9", rows(0)))
    assert text == "unexpected inference input 'INPUT9' for model 'simple'"


def test_a_missing_input_and_the_id() -> None:
    assert refusal(SIMPLE, wire("INPUT0", rows(0)), id="7") == (
        "[request id: 7] expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) "
        "['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required "
        "input(s)."
    )


def test_too_many_inputs() -> None:
    assert refusal(SIMPLE, *two(rows(0)), wire("X", rows(0))) == (
        UNKNOWN + "expected 2 inputs but got 3 inputs for model 'simple'. Got input(s) "
        "['X','INPUT1','INPUT0'], but missing required input(s) ]. Please provide all required "
        "input(s)."
    )


def test_optional_inputs_widen_the_number() -> None:
    assert refusal(OPTIONAL) == (
        UNKNOWN + "expected number of inputs between 3 and 4 but got 0 inputs for model 'simple'. "
        "Got input(s) [], but missing required input(s) ['INPUT0','INPUT1','INPUT2']. Please "
        "provide all required input(s)."
    )


def test_an_input_twice() -> None:
    twice = refusal(SIMPLE, *two(rows(0)), wire("INPUT0", rows(0)))
    assert twice == UNKNOWN + "input 'INPUT0' already exists in request"


def test_the_last_of_several_wrong_inputs_is_named() -> None:
    assert refusal(SIMPLE, *two(np.zeros((1, 8), np.int32))) == (
        UNKNOWN + "unexpected shape for input 'INPUT1' for model 'simple'. Expected [-1,16], got "
        "[1,8]." + NOTE
    )
    assert refusal(SIMPLE, *two(np.zeros((1, 16), np.float32))) == (
        UNKNOWN + "inference input 'INPUT1' data-type is 'FP32', but model 'simple' expects 'INT32'"
    )


def test_without_a_batch_dimension_the_note_is_left_out() -> None:
    text = refusal(ANY, sent(4, datatype="FP32", size=16))
    assert text == (
        UNKNOWN + "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,-1], got "
        "[4]. "
    )


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (sent(1, 16, datatype="FOO"), "inference input 'INPUT0' data-type is '<invalid>', but "
         "model 'simple' expects 'INT32'"),
        (sent(), "input 'INPUT0' has no shape but model requires batch dimension for 'simple'"),
        (sent(2, 16, size=128), "input 'INPUT0' batch size does not match other inputs for "
         "'simple'"),
        (sent(1, 16, size=60), "input byte size mismatch for input 'INPUT0' for model 'simple'. "
         "Expected 64, got 60"),
        (sent(1, -16), "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], "
         "got [1,-16]." + NOTE),
    ],
)  # fmt: skip
def test_one_wrong_input(first: InputTensor, text: str) -> None:
    assert refusal(SIMPLE, first, sent(1, 16, name="INPUT1")) == UNKNOWN + text


def test_rows_over_the_limit() -> None:
    text = refusal(SIMPLE, *two(rows(0, 9)))
    assert text == UNKNOWN + "inference request batch-size must be <= 8 for 'simple'"


@pytest.mark.parametrize(("count", "limit"), [(0, ">= 1"), (-1, "<= 8")])
def test_a_batch_has_rows(count: int, limit: str) -> None:
    text = refusal(SIMPLE, *(sent(count, 16, name=name, size=0) for name in ("INPUT0", "INPUT1")))
    assert text == UNKNOWN + f"inference request batch-size must be {limit} for 'simple'"


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
@pytest.mark.parametrize("shape", [(0, 2**62), (0, 2**64), (2**62, 2**62, 0)])
def test_a_shape_without_elements_that_no_array_can_have(
    shape: tuple[int, ...], datatype: str
) -> None:
    tensor = ModelTensor("INPUT0", datatype, (-1,) * len(shape))
    text = refusal(ModelSignature((tensor,), (), 0), sent(*shape, datatype=datatype, size=0))
    assert "is too large" in text


@pytest.mark.parametrize("shape", [(-1, 4), (-2, -2)])
def test_sizes_must_be_given(shape: tuple[int, int]) -> None:
    text = refusal(ANY, sent(*shape, datatype="FP32", size=16))
    assert text == (
        UNKNOWN + "All input dimensions should be specified for input 'INPUT0' for model 'simple', "
        f"got [{shape[0]},{shape[1]}]"
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (14, "expected 16 string elements for inference input 'INPUT1' for model 'simple', got 14"),
        (18, "unexpected number of string elements 17 for inference input 'INPUT1' for model "
         "'simple', expecting 16"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("binary", [True, False])
def test_the_number_of_strings(count: int, text: str, binary: bool) -> None:
    elements = strings(*[b"x"] * count)
    data = wire("", elements).data if binary else elements
    both = [InputTensor(name, "BYTES", (1, 16), data) for name in ("INPUT0", "INPUT1")]

    assert refusal(STRINGS, *both) == UNKNOWN + text


def test_reshape_changes_what_the_engine_gets() -> None:
    reshaped = ModelTensor("INPUT0", "FP32", (-1, 3, -1), reshape=(-1, 1, 3))
    check = RequestCheck("simple", ModelSignature((reshaped,), (), 4))

    checked = check(InferRequest("simple", None, [wire("INPUT0", np.ones((2, 3, 5), np.float32))]))

    assert checked.feeds["INPUT0"].shape == (2, 5, 1, 3)
