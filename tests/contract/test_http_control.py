"""Loading, unloading and generating over HTTP, as the recordings do not show it."""

import json
from typing import Any

import pytest
from tests.contract.http_client import error, infer, ones
from tests.contract.replay import Answer, send

pytestmark = pytest.mark.slow

SIMPLE = {"inputs": [ones("INPUT0"), ones("INPUT1")]}


@pytest.fixture
def port(golden_server) -> int:
    return golden_server.port


def control(port: int, model: str, action: str, parameters: dict[str, Any]) -> Answer:
    body = json.dumps({"parameters": parameters}).encode()
    return send(port, "POST", f"/v2/repository/models/{model}/{action}", body=body)


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        ({"config": 1}, 500, "attempt to access JSON non-string as string"),
        ({"file:1/model.onnx": "a"}, 400, "'file:1/model.onnx' is not base64"),
        (
            {"config": "{"},
            500,
            "failed to load 'simple', failed to poll from model repository: Invalid config "
            "override: unexpected end of data: line 1 column 2 (char 1)",
        ),
        (
            {"config": '{"instance_group": [{"kind": 9}]}'},
            500,
            "failed to load 'simple', failed to poll from model repository: 9 is not a kind of "
            "instance_group: use one of KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL",
        ),
        ({"other": "x"}, 500, "unexpected error on creating Triton parameter"),
    ],
)
def test_a_load_that_fails_leaves_the_model(port, parameters, status, text):
    assert error(control(port, "simple", "load", parameters)) == (status, text)
    assert infer(port, "simple", SIMPLE).status == 200


def test_a_model_that_answers_more_than_once(port):
    plain = json.loads(send(port, "GET", "/v2/models/identity_int16/config").body)
    config = {
        **{key: plain[key] for key in ("backend", "max_batch_size", "input", "output")},
        "model_transaction_policy": {"decoupled": True},
    }
    loaded = control(port, "identity_int16", "load", {"config": json.dumps(config)})
    assert loaded.status == 200, loaded.body
    answer = infer(port, "identity_int16", {"inputs": []})
    refused = "HTTP end point doesn't support models with decoupled transaction policy"
    assert error(answer) == (501, refused)
    assert control(port, "identity_int16", "load", {}).status == 200


def test_another_repository(port):
    for path in ("r/index", "r/models/simple/load", "r/models/simple/unload"):
        answer = send(port, "POST", f"/v2/repository/{path}", body=b"{}")
        if not path.endswith("index"):
            refused = "'repository_name' specification is not supported"
            assert error(answer) == (501, refused)


def test_a_handle_that_is_not_base64(port):
    given = {"raw_handle": {"b64": "@@@@AAAA!!!!"}, "byte_size": 8, "device_id": 0}
    path = "/v2/cudasharedmemory/region/r/register"
    answer = send(port, "POST", path, body=json.dumps(given).encode())
    assert answer.status == 400
    assert "r" in error(answer)[1]


def generate(port: int, model: str, body: object, kind: str = "generate") -> Answer:
    return send(port, "POST", f"/v2/models/{model}/{kind}", body=json.dumps(body).encode())


def test_generate_maps_names(port):
    answer = generate(port, "identity_int32", {"INPUT0": [1, 2, 3], "id": "x", "other": 1.5})
    assert list(json.loads(answer.body).items()) == [
        ("OUTPUT0", [1, 2, 3]),
        ("id", "x"),
        ("model_name", "identity_int32"),
        ("model_version", "1"),
    ]
    assert json.loads(generate(port, "identity_int32", {"INPUT0": 7}).body)["OUTPUT0"] == 7


@pytest.mark.parametrize(
    ("model", "body", "status", "text"),
    [
        ("nope", {}, 404, "Request for unknown model: 'nope' is not found"),
        ("simple", {"INPUT0": [1] * 15}, 400, "The schema can not convert input 'INPUT0'"),
        ("simple", {"INPUT0": ["a"] * 16}, 500, "attempt to access JSON non-signed-integer"),
        ("simple", {"INPUT0": [1] * 16}, 400, "expected 2 inputs but got 1 inputs"),
        ("simple", {"x": []}, 400, "parameter 'x' has invalid type"),
        ("simple", [], 500, "attempt to get members of a non-object"),
    ],
)
def test_generate_refuses(port, model, body, status, text):
    answer = generate(port, model, body)
    assert answer.status == status
    assert text in error(answer)[1]
    event = generate(port, model, body, "generate_stream")
    assert event.status == status
    assert event.body == b"data: " + answer.body + b"\n\n"
