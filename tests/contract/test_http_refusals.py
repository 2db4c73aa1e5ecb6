"""What is wrong with a request is told, with Triton's status and in Triton's words."""

import json
import random
from collections.abc import Iterator

import pytest
from tests.contract.http_client import binary, error, infer, ones, tensor
from tests.contract.replay import send
from tests.serving import RunningServer, start_server

pytestmark = pytest.mark.slow

LIMIT = 200_000


@pytest.fixture(scope="module")
def server(recordings, tmp_path_factory) -> Iterator[RunningServer]:
    flags = (
        "--model-control-mode=explicit",
        "--load-model=simple",
        "--load-model=string_identity",
        "--load-model=identity_fp32",
        "--load-model=identity_uint8",
        "--load-model=identity_bool",
        f"--http-max-input-size={LIMIT}",
        "--http-restricted-api=model-repository,logging:admin-key=secret",
        "--allow-metrics=false",
        "--allow-grpc=false",
    )
    server = start_server(recordings / "models", tmp_path_factory.mktemp("refusals"), flags)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def port(server) -> int:
    return server.port


def simple(**changes: object) -> dict[str, object]:
    """A good document, but for one input."""
    return {"inputs": [{**ones("INPUT0"), **changes}, ones("INPUT1")]}


NO_MEMBER = "attempt to access non-existing object member"
UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
SIGNED = "attempt to access JSON non-signed-integer as signed-integer"
STRING = "attempt to access JSON non-string as string"
BOOLEAN = "attempt to access JSON non-boolean as boolean"
ARRAY = "attempt to access JSON non-array as array"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (None, f"Unable to parse 'inputs': {NO_MEMBER} 'inputs'"),
        ({"inputs": None}, f"Unable to parse 'inputs': {ARRAY}"),
        (simple(name=1), f"Unable to parse 'name': {STRING}"),
        (simple(datatype=[]), f"Unable to parse 'datatype': {STRING}"),
        (simple(shape=[1, 1.5]), f"Unable to parse 'shape': {UNSIGNED}"),
        (simple(shape=[True, 16]), f"Unable to parse 'shape': {UNSIGNED}"),
        (simple(shape=[2**64, 16]), f"Unable to parse 'shape': {UNSIGNED}"),
        (simple(data="x"), f"Unable to parse 'data': {ARRAY}"),
        (simple(data=[1.5] * 16), f"Unable to parse 'data': {SIGNED}"),
        (simple(data=[True] * 16), f"Unable to parse 'data': {SIGNED}"),
        (simple(data=[None] * 16), f"Unable to parse 'data': {SIGNED}"),
        (simple(data=[{}] * 16), f"Unable to parse 'data': {SIGNED}"),
        (simple(data=[2**40] * 16), "Unable to parse 'data': an element is out of the range"),
        (simple(data=[1] * 17), "Unable to parse 'data': Shape does not match true shape"),
        (simple(shape=[2**40, 2**40]), "Unable to parse 'data': Shape does not match true shape"),
        (simple() | {"id": 1}, f"Unable to parse 'id': {STRING}"),
        (simple() | {"outputs": {}}, f"Unable to parse 'outputs': {ARRAY}"),
        (simple() | {"outputs": [1]}, f"Unable to parse 'name': {NO_MEMBER} 'name'"),
        (simple() | {"parameters": {"priority": -1}}, f"Unable to parse 'priority': {UNSIGNED}"),
        (simple() | {"parameters": {"timeout": "1"}}, f"Unable to parse 'timeout': {UNSIGNED}"),
        (
            simple() | {"parameters": {"sequence_id": 1.5}},
            f"Unable to parse 'sequence_id': {STRING}",
        ),
        (
            simple() | {"parameters": {"sequence_start": 1}},
            f"Unable to parse 'sequence_start': {BOOLEAN}",
        ),
        (
            simple() | {"outputs": [{"name": "OUTPUT0", "parameters": {"classification": -1}}]},
            f"Unable to parse 'classification': {UNSIGNED}",
        ),
        (
            simple() | {"outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": 1}}]},
            f"Unable to parse 'binary_data': {BOOLEAN}",
        ),
        (
            {"inputs": [binary("INPUT0", [1, 16], "INT32", -4), ones("INPUT1")]},
            f"Unable to parse 'binary_data_size': {UNSIGNED}",
        ),
    ],
)
def test_values_of_other_types(port, document, text):
    status, told = error(infer(port, "simple", document))
    assert status == 500
    assert told.startswith(text)


@pytest.mark.parametrize("count", [0, 1, 3, 10_000])
def test_a_wrong_number_of_strings_is_told_as_in_binary(port, count):
    """Triton's parser counts numbers alone; its core counts strings."""
    strings = tensor("INPUT0", [2], "BYTES", data=["a"] * count)
    status, told = error(infer(port, "string_identity", {"inputs": [strings]}))
    assert status == 400
    what = "string elements"
    which = "for inference input 'INPUT0' for model 'string_identity'"
    if count < 2:
        assert f"expected 2 {what} {which}, got {count}" in told
    else:
        assert f"unexpected number of {what} 3 {which}, expecting 2" in told


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"inputs": [1]}, "Input must set only one of the following fields"),
        (simple(data=None), "But no field is set"),
        (
            simple(parameters={"binary_data_size": 64}),
            "But set 'data' 'binary_data_size'",
        ),
        (simple(datatype="INT33"), "invalid datatype for input INPUT0"),
        (
            simple() | {"parameters": {"triton_x": 1}},
            "parameter keys starting with 'triton_' are reserved for Triton usage",
        ),
        (simple() | {"parameters": {"x": []}}, "parameter 'x' has invalid type"),
        (
            {"inputs": [binary("INPUT0", [1, 16], "INT32", 2**63), ones("INPUT1")]},
            "unexpected size for input 'INPUT0', expecting",
        ),
        (
            simple() | {"outputs": [{"name": "OUTPUT9"}]},
            "unexpected inference output 'OUTPUT9' for model 'simple'",
        ),
    ],
)
def test_contradictions(port, document, text):
    status, told = error(infer(port, "simple", document))
    assert status == 400
    assert text in told


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        ("UINT8", [-1], UNSIGNED),
        ("UINT8", [256], "an element is out of the range of UINT8"),
        ("BOOL", [1], BOOLEAN),
        ("FP32", ["1"], "attempt to access JSON non-number as double"),
    ],
)
def test_elements_of_other_types(port, datatype, data, text):
    document = {"inputs": [tensor("INPUT0", [1, 1], datatype, data=data)]}
    told = error(infer(port, f"identity_{datatype.lower()}", document))
    assert told == (500, f"Unable to parse 'data': {text}")


@pytest.mark.parametrize(
    "text", [b"x", b"{", b'{"inputs":[', b"\xff\xfe", b'{"a":1}x', b"[" * 5000]
)
def test_no_json(port, text):
    status, told = error(infer(port, "simple", text))
    assert status == 500
    assert told.startswith("failed to parse the request JSON buffer: ")


@pytest.mark.parametrize("depth", [99, 101, 500])
def test_json_is_nested_so_deep_and_no_deeper(port, depth):
    text = json.dumps(simple())[:-1] + ',"more":' + "[" * depth + "]" * depth + "}"
    answer = infer(port, "simple", text.encode())
    if depth < 100:
        assert answer.status == 200
    else:
        assert "nested deeper than 100" in error(answer)[1]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/simple/unload"),
        ("GET", "/v2/logging"),
    ],
)
def test_restricted_parts_ask_for_their_header(port, method, path):
    refused = "This API is restricted, expecting header 'admin-key'"
    assert error(send(port, method, path)) == (403, refused)
    assert error(send(port, method, path, {"admin-key": "guess"})) == (403, refused)
    if not path.endswith("unload"):
        assert send(port, method, path, {"Admin-Key": "secret"}).status == 200
    assert send(port, "GET", "/v2/models/simple").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v2/",
        "/v2/models/simple/",
        "/v2/models//infer",
        "/v2/models/simple/infer/",
        "/v2x",
        "/v2/models/..%2F..%2Fetc%2Fpasswd",
        "/v2/models/%00",
    ],
)
def test_addresses_that_are_none(port, path):
    assert send(port, "GET", path).status == 404


def test_a_version_that_is_too_large(port):
    status, told = error(send(port, "GET", f"/v2/models/simple/versions/{'9' * 400}"))
    assert status == 400
    assert "version should be an integral value > 0" in told


@pytest.mark.parametrize("where", ["name", "id", "datatype"])
def test_half_a_pair_of_surrogates_is_no_text(port, where):
    document = {"id": "x", "inputs": [tensor("INPUT0", [1, 1], "FP32", data=[float("nan")])]}
    target = document if where == "id" else document["inputs"][0]
    target[where] = "\ud800"
    status, told = error(infer(port, "identity_fp32", document))
    assert status == 500
    assert told.startswith("failed to parse the request JSON buffer: Invalid value. at ")


def test_a_thousand_damaged_requests(server):
    """Whatever is cut out of, or put into, a good request, the answer is one that clients read."""
    document = {"inputs": [binary("INPUT0", [1, 16], "INT32", 64), ones("INPUT1")], "id": "a"}
    text = json.dumps(document).encode()
    good = text + bytes(64)
    chance = random.Random(7)
    for _ in range(1000):
        body = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            at, size = chance.randrange(len(body)), chance.randint(0, 8)
            body[at : at + size] = chance.choice(
                [b"", chance.randbytes(3), b"[", b'"', b"-1", b"{}", b"NaN", b"\\ud800"]
            )
        headers = {"Inference-Header-Content-Length": str(len(text) + chance.randint(-2, 2))}
        answer = send(server.port, "POST", "/v2/models/simple/infer", headers, bytes(body))
        assert answer.status in (200, 400, 500), answer
        assert answer.status == 200 or "internal error" not in error(answer)[1]
