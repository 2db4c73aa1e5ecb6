"""The OpenAPI document is valid, complete, and true of what the server answers."""

from typing import Any

import httpx
import openapi_spec_validator
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

OPERATIONS = {
    "predict",
    "predict_version",
    "list_models",
    "get_model",
    "get_model_version",
    "model_ready",
    "model_statistics",
    "server_live",
    "server_ready",
    "own_key",
}


@pytest.fixture(scope="module")
def spec(demo_server) -> dict[str, Any]:
    return httpx.get(demo_server.url + "/openapi.json").json()


@pytest.fixture(scope="module")
def operations(spec) -> dict[str, dict[str, Any]]:
    return {each["operationId"]: each for path in spec["paths"].values() for each in path.values()}


def check(spec: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    """Hold a value to a schema of the document."""
    resource = Resource(contents=spec, specification=DRAFT202012)
    pointer = {"$ref": f"urn:spec{schema['$ref']}"}
    registry = Registry().with_resource("urn:spec", resource)
    Draft202012Validator(pointer, registry=registry).validate(value)


def test_the_document_is_valid_and_names_every_operation(spec, operations):
    openapi_spec_validator.validate(spec)
    assert set(operations) == OPERATIONS
    assert all(each["description"] for each in operations.values())


def test_every_json_body_has_a_named_schema_and_examples_that_fit_it(spec, operations):
    for name, operation in operations.items():
        contents = [answer["content"] for answer in operation["responses"].values()]
        if "requestBody" in operation:
            contents.append(operation["requestBody"]["content"])
        for content in contents:
            body = content["application/json"]
            assert body["examples"], name
            for example in body["examples"].values():
                check(spec, body["schema"], example["value"])


def test_errors_are_one_schema(operations):
    error = {"$ref": "#/components/schemas/Error"}
    for operation in operations.values():
        assert "default" in operation["responses"]
        for status, answer in operation["responses"].items():
            if status != "200":
                assert answer["content"]["application/json"]["schema"] == error
    told = {"400", "403", "404", "413", "422", "429", "503", "504"}
    assert told < set(operations["predict"]["responses"])


def test_a_prediction_takes_a_plain_image_and_typed_options(operations):
    predict = operations["predict"]
    content = predict["requestBody"]["content"]
    assert list(content) == ["application/octet-stream", "multipart/form-data", "application/json"]
    types = {p["name"]: p["schema"]["type"] for p in predict["parameters"] if p["in"] == "query"}
    assert types == {
        "conf": "number",
        "iou": "number",
        "classes": "array",
        "max_det": "integer",
        "top_k": "integer",
        "agnostic": "boolean",
        "mask": "string",
        "tile": "string",
        "overlap": "number",
    }
    assert {"image/jpeg", "image/png"} < set(predict["responses"]["200"]["content"])


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/models", "list_models"),
        ("/v1/models/digits", "get_model"),
        ("/v1/models/digits/versions/1", "get_model_version"),
        ("/v1/models/digits/versions/0", "get_model_version"),
        ("/v1/models/nobody", "get_model"),
        ("/v1/models/digits/ready", "model_ready"),
        ("/v1/models/digits/statistics", "model_statistics"),
        ("/v1/models/nobody/statistics", "model_statistics"),
        ("/v1/health/live", "server_live"),
        ("/v1/health/ready", "server_ready"),
    ],
)
def test_what_is_answered_is_as_described(demo_server, spec, operations, path, operation):
    answer = httpx.get(demo_server.url + path)
    described = operations[operation]["responses"][str(answer.status_code)]
    check(spec, described["content"]["application/json"]["schema"], answer.json())


def test_what_is_predicted_is_as_described(demo_server, spec, operations, scene):
    url = demo_server.predict_url("digits")
    for body, query in ((scene, ""), (scene, "?conf=7"), (b"text", ""), (scene, "?classes=persn")):
        answer = httpx.post(url + query, content=body)
        described = operations["predict"]["responses"][str(answer.status_code)]
        check(spec, described["content"]["application/json"]["schema"], answer.json())


def test_the_documentation_page_shows_it(demo_server):
    page = httpx.get(demo_server.url + "/docs")
    assert page.status_code == 200
    assert "swagger" in page.text.lower()
    assert "/openapi.json" in page.text
