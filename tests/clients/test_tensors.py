"""Fovea's own client, sync and async, gets the tensors that tritonclient gets."""

import asyncio

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http
from tests.clients.conftest import make_input

from fovea_client import AsyncClient, Client, ConnectionFailed, ServerError

pytestmark = pytest.mark.real

RNG = np.random.default_rng(5)
NUMBERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
NUMBERS += [f"float{bits}" for bits in (16, 32, 64)]
FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
PAIR = {"INPUT0": FIRST, "INPUT1": np.ones((1, 16), np.int32)}


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


def tensor(datatype, shape=(2, 6)):
    if datatype == "bool":
        return RNG.random(shape) < 0.5
    if datatype.startswith("float"):
        return RNG.normal(0, 100, shape).astype(datatype)
    limits = np.iinfo(datatype)
    return RNG.integers(limits.min, limits.max, shape, datatype, endpoint=True)


@pytest.mark.parametrize("datatype", ["bool", *NUMBERS])
def test_every_type_of_numbers(infer, http_client, datatype):
    sent = tensor(datatype)
    name = tritonclient.utils.np_to_triton_dtype(sent.dtype)
    given = make_input(tritonclient.http, "INPUT0", sent, name)
    want = http_client.infer(f"identity_{name.lower()}", [given]).as_numpy("OUTPUT0")
    # As slices and transposed arrays lie in memory, and as a big-endian file has them.
    for array in (sent, np.asfortranarray(sent), sent.astype(sent.dtype.newbyteorder(">"))):
        [(output, got)] = infer(f"identity_{name.lower()}", {"INPUT0": array}).items()
        assert (output, got.dtype, got.shape) == ("OUTPUT0", want.dtype, want.shape)
        assert got.tobytes() == want.tobytes() == sent.tobytes()
        assert got.flags.writeable
        assert got.flags.aligned


def test_bf16_comes_back_as_float32(infer):
    sent = np.array([[1.0, -2.5], [3.14, 1e30]], ml_dtypes.bfloat16)
    got = infer("identity_bf16", {"INPUT0": sent})["OUTPUT0"]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, sent.astype(np.float32))


WORDS = [["", "h\u00e9llo"], ["a\0b\0", "x" * 300]]
BYTES = [[word.encode() for word in row] for row in WORDS]


@pytest.mark.parametrize("sent", [np.array(BYTES, object), np.array(WORDS, object)])
def test_strings(infer, http_client, sent):
    given = make_input(tritonclient.http, "INPUT0", sent, "BYTES")
    want = http_client.infer("identity_bytes", [given]).as_numpy("OUTPUT0")
    got = infer("identity_bytes", {"INPUT0": sent})["OUTPUT0"]
    assert got.tolist() == want.tolist() == BYTES


@pytest.mark.parametrize("dtype", ["S3", "U3", np.dtypes.StringDType()])
def test_strings_of_numpy(infer, dtype):
    got = infer("identity_bytes", {"INPUT0": np.array([["abc", "d"]], dtype)})["OUTPUT0"]
    assert got.tolist() == [[b"abc", b"d"]]


@pytest.mark.parametrize("datatype", ["float32", "object"])
def test_no_elements_at_all(infer, datatype):
    name = "identity_bytes" if datatype == "object" else "identity_fp32"
    got = infer(name, {"INPUT0": np.zeros((0, 4), datatype)})["OUTPUT0"]
    assert (got.shape, got.dtype) == ((0, 4), datatype)


def test_outputs_versions_and_parameters(infer):
    got = infer("simple", PAIR)
    assert list(got) == ["OUTPUT0", "OUTPUT1"]
    np.testing.assert_array_equal(got["OUTPUT0"], FIRST + 1)
    [(name, got)] = infer("simple", PAIR, outputs=["OUTPUT1"], version=1).items()
    assert name == "OUTPUT1"
    np.testing.assert_array_equal(got, FIRST - 1)
    one = {"INPUT": np.ones((1, 1), np.int32)}
    first = {"sequence_id": 77, "sequence_start": True}
    assert infer("simple_sequence", one, parameters=first)["OUTPUT"] == 2
    assert infer("simple_sequence", one, parameters={"sequence_id": 77, "sequence_end": True})


@pytest.mark.parametrize(
    ("model", "inputs", "options", "status", "told"),
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
def test_errors_of_the_server(infer, model, inputs, options, status, told):
    with pytest.raises(ServerError, match=told) as caught:
        infer(model, inputs, **options)
    assert (caught.value.status, caught.value.code) == (status, f"http_{status}")
    assert caught.value.message.count('"error"') == 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (np.zeros((1, 16), complex), "'INPUT0' has the type complex128"),
        (np.zeros((1, 16), "datetime64[s]"), "convert it with astype"),
        (np.array([[1, 2.5]], object), "'INPUT0' has an element of type int"),
        ([[1.0] * 16], "must be a NumPy array, not list"),
        (np.float32(1), "not float32"),
    ],
)
def test_what_the_protocol_does_not_have_is_refused_before(infer, given, told):
    with pytest.raises(TypeError, match=told):
        infer("simple", {"INPUT0": given})


def test_nobody_answers():
    with Client("http://127.0.0.1:9") as client, pytest.raises(ConnectionFailed):
        client.infer("simple", PAIR)
