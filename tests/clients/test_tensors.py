"""Fovea's client, sync and async, and tritonclient over HTTP and gRPC get the same tensors."""

import asyncio

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tests.clients.conftest import FIRST, ONES, address, make_input
from tritonclient.utils import np_to_triton_dtype

from fovea_client import AsyncClient, Client, ConnectionFailed, ServerError

pytestmark = pytest.mark.real

RNG = np.random.default_rng(5)
NUMBERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
NUMBERS += [f"float{bits}" for bits in (16, 32, 64)]
PAIR = {"INPUT0": FIRST, "INPUT1": ONES}
WORDS = [["", "h\u00e9llo"], ["a\0b\0", "x" * 300]]
BYTES = [[word.encode() for word in row] for row in WORDS]


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def infer(request, server):
    """`infer` of a new client, of either kind."""

    def call(*arguments, **options):
        if request.param is Client:
            with Client(server.url) as client:
                return client.infer(*arguments, **options)

        async def wait():
            async with AsyncClient(server.url) as client:
                return await client.infer(*arguments, **options)

        return asyncio.run(wait())

    return call


def check_tritonclient(server, model, sent, datatype, expected):
    for protocol in (tritonclient.http, tritonclient.grpc):
        with protocol.InferenceServerClient(address(server, protocol)) as client:
            inputs = [make_input(protocol, "INPUT0", sent, datatype)]
            found = client.infer(model, inputs).as_numpy("OUTPUT0")
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("datatype", ["bool", *NUMBERS])
def test_numbers(server, infer, datatype):
    if datatype == "bool":
        sent = RNG.random((2, 6)) < 0.5
    elif datatype.startswith("float"):
        sent = RNG.normal(0, 100, (2, 6)).astype(datatype)
    else:
        limits = np.iinfo(datatype)
        sent = RNG.integers(limits.min, limits.max, (2, 6), datatype, endpoint=True)
    name = np_to_triton_dtype(sent.dtype)
    check_tritonclient(server, f"identity_{name.lower()}", sent, name, sent)
    # In the memory order of slices and transposed arrays, and of big-endian files.
    for array in (sent, np.asfortranarray(sent), sent.astype(sent.dtype.newbyteorder(">"))):
        [(output, found)] = infer(f"identity_{name.lower()}", {"INPUT0": array}).items()
        assert (output, found.dtype, found.shape) == ("OUTPUT0", sent.dtype, sent.shape)
        assert found.tobytes() == sent.tobytes()
        assert found.flags.writeable
        assert found.flags.aligned


def test_bf16_comes_back_as_float32(server, infer):
    sent = np.array([[1.0, -2.5], [3.14, 1e30]], ml_dtypes.bfloat16)
    found = infer("identity_bf16", {"INPUT0": sent})["OUTPUT0"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, sent.astype(np.float32))
    check_tritonclient(server, "identity_bf16", sent, "BF16", sent)


@pytest.mark.parametrize("dtype", [object, "S9", "U9", np.dtypes.StringDType()])
def test_strings(server, infer, dtype):
    if dtype is not object:
        found = infer("identity_bytes", {"INPUT0": np.array([["abc", "d"]], dtype)})["OUTPUT0"]
        assert found.tolist() == [[b"abc", b"d"]]
        return
    expected = np.array(BYTES, object)
    check_tritonclient(server, "identity_bytes", expected, "BYTES", expected)
    for sent in (expected, np.array(WORDS, object)):
        assert infer("identity_bytes", {"INPUT0": sent})["OUTPUT0"].tolist() == BYTES


@pytest.mark.parametrize(("dtype", "name"), [("float32", "FP32"), ("object", "BYTES")])
def test_no_elements(server, infer, dtype, name):
    sent = np.zeros((0, 4), dtype)
    found = infer(f"identity_{name.lower()}", {"INPUT0": sent})["OUTPUT0"]
    assert (found.shape, found.dtype) == ((0, 4), dtype)
    check_tritonclient(server, f"identity_{name.lower()}", sent, name, sent)


def test_outputs_versions_and_parameters(infer):
    found = infer("simple", PAIR)
    assert list(found) == ["OUTPUT0", "OUTPUT1"]
    np.testing.assert_array_equal(found["OUTPUT0"], FIRST + 1)
    [(name, found)] = infer("simple", PAIR, outputs=["OUTPUT1"], version=1).items()
    assert name == "OUTPUT1"
    np.testing.assert_array_equal(found, FIRST - 1)
    one = {"INPUT": np.ones((1, 1), np.int32)}
    first = {"sequence_id": 77, "sequence_start": True}
    assert infer("simple_sequence", one, parameters=first)["OUTPUT"] == 2
    assert infer("simple_sequence", one, parameters={"sequence_id": 77, "sequence_end": True})


@pytest.mark.parametrize(
    ("model", "inputs", "options", "status", "text"),
    [
        ("nobody", PAIR, {}, 404, "unknown model: 'nobody' is not found"),
        ("a/../simple", PAIR, {}, 404, "unknown model"),
        ("simple", PAIR, {"version": 7}, 404, "version 7"),
        ("simple", PAIR, {"outputs": ["OUTPUT9"]}, 400, "unexpected inference output 'OUTPUT9'"),
        ("simple", {"INPUT0": FIRST}, {}, 400, "expected 2 inputs but got 1"),
        ("simple", {}, {}, 400, "expected 2 inputs but got 0"),
        ("simple", PAIR | {"INPUT1": FIRST.astype(float)}, {}, 400, "data-type is 'FP64'"),
        ("simple", PAIR | {"INPUT1": FIRST[:, :8]}, {}, 400, "unexpected shape"),
        ("simple", PAIR, {"parameters": {"triton_x": 1}}, 400, "reserved"),
    ],
)
def test_errors_of_the_server(infer, model, inputs, options, status, text):
    with pytest.raises(ServerError, match=text) as caught:
        infer(model, inputs, **options)
    assert (caught.value.status, caught.value.code) == (status, f"http_{status}")
    assert '"error"' not in caught.value.message


@pytest.mark.parametrize(
    "tensor",
    [
        np.zeros((1, 16), complex),
        np.zeros((1, 16), "datetime64[s]"),
        np.array([[1, 2.5]], object),
        [[1.0] * 16],
        np.float32(1),
    ],
)
def test_unsupported_tensors_are_not_sent(infer, tensor):
    with pytest.raises(TypeError):
        infer("simple", {"INPUT0": tensor})


def test_no_server():
    with Client("http://127.0.0.1:9") as client, pytest.raises(ConnectionFailed):
        client.infer("simple", PAIR)
