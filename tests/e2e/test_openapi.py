"""The OpenAPI document is valid, complete, and true of what the server answers."""

import json
import re
from importlib.metadata import version
from typing import Any

import httpx
import openapi_spec_validator
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

pytestmark = pytest.mark.slow

IMAGE, FORM = ["application/octet-stream"], ["multipart/form-data"]
DRAWN = ["image/jpeg", "image/png", "image/webp"]
OF_STREAMS = [["image/jpeg"], ["text/event-stream", "application/x-ndjson"]]
OF_SHADOWS = [["text/markdown"]]
OPERATIONS = {
    *(
        f"{name}{version}"
        for name in (
            *("predict", "predict_form", "predict_json", "annotate"),
            *("search", "search_words", "embed"),
        )
        for version in ("", "_version")
    ),
    "list_models",
    "get_model",
    "get_model_version",
    "model_ready",
    "model_statistics",
    "model_drift",
    "server_live",
    "server_ready",
    *("load_model_version", "unload_model_version"),
    "own_key",
    *("model_history", "promote_model", "roll_model_back"),
    *("list_streams", "get_stream", "add_stream", "change_stream", "remove_stream"),
    *("stream_image", "stream_events", "stream_event_image"),
    *("begin_shadow", "get_shadow", "end_shadow", "shadow_report", "shadow_worst"),
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
    assert spec["info"]["version"] == version("fovea-serve")
    assert set(operations) == OPERATIONS
    assert all(each["description"] for each in operations.values())


def test_every_json_body_has_a_named_schema_and_examples_that_fit_it(spec, operations):
    for name, operation in operations.items():
        contents = [answer["content"] for answer in operation["responses"].values()]
        if "requestBody" in operation:
            contents.append(operation["requestBody"]["content"])
        for content in contents:
            if not (body := content.get("application/json")):
                assert list(content) in (IMAGE, FORM, DRAWN, *OF_STREAMS, *OF_SHADOWS), name
                continue
            assert body["examples"], name
            for example in body["examples"].values():
                check(spec, body["schema"], example["value"])


def test_errors_are_one_schema(operations):
    error = {"$ref": "#/components/schemas/ErrorAnswer"}
    for operation in operations.values():
        assert "default" in operation["responses"]
        for status, answer in operation["responses"].items():
            if status not in ("200", "201"):
                assert answer["content"]["application/json"]["schema"] == error
    told = {"400", "403", "404", "413", "422", "429", "503", "504"}
    assert told < set(operations["predict"]["responses"])


def test_an_operation_has_one_type_of_body_and_one_of_answer(operations):
    kinds = {"predict": IMAGE, "predict_form": FORM, "annotate": IMAGE, "search": IMAGE}
    for name in ("predict", "predict_form", "predict_json", "annotate", "search"):
        for operation in (operations[name], operations[f"{name}_version"]):
            kind = kinds.get(name, ["application/json"])
            assert list(operation["requestBody"]["content"]) == kind
            answer = DRAWN if name == "annotate" else ["application/json"]
            assert list(operation["responses"]["200"]["content"]) == answer


def test_options_are_typed_and_in_the_address_where_the_body_is_an_image(spec, operations):
    queries = {
        name: {p["name"]: p["schema"]["type"] for p in each["parameters"] if p["in"] == "query"}
        for name, each in operations.items()
        if "requestBody" in each and "predict" in each["tags"]
    }
    types = {
        "conf": "number",
        "iou": "number",
        "classes": "array",
        "max_det": "integer",
        "top_k": "integer",
        "agnostic": "boolean",
        "mask": "string",
        "labels": "array",
        "normalise": "boolean",
        "vector": "string",
        "tile": "string",
        "overlap": "number",
        **{"track": "string", "stream_id": "string", "frame": "integer"},
        **{"track_high": "number", "track_new": "number", "min_frames": "integer"},
    }
    assert queries["predict"] == queries["annotate"] == types
    [search] = [p for p in operations["search"]["parameters"] if p["name"] == "k"]
    assert search["schema"] == {"type": "integer", "minimum": 1, "maximum": 1000}
    assert queries["predict_form"] == queries["predict_json"] == {}
    for body in ("PredictForm", "PredictJson"):
        assert types.keys() < spec["components"]["schemas"][body]["properties"].keys()


def test_no_schema_of_an_answer_is_a_choice(spec):
    """Generators of several languages cannot read one."""
    names = ["PredictAnswer"]
    for name in names:
        text = json.dumps(spec["components"]["schemas"][name])
        parts = re.findall(r'"#/components/schemas/(\w+)"', text)
        names += [part for part in parts if part not in names]
        assert "oneOf" not in text, name
        # A value or null is none.
        assert text.count('"anyOf"') == text.count('{"type": "null"}'), name
    assert {"ImageAnswer", "Detection", "Mask", "Semantic"} < set(names)


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
        ("/v1/streams", "list_streams"),
        ("/v1/streams/nobody", "get_stream"),
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
    assert "openapi.json" in page.text


def test_optional_parameters_are_not_filled_in(operations):
    """Swagger UI sends what it is filled in with, and most options are of other tasks."""
    for operation in operations.values():
        for parameter in operation.get("parameters", ()):
            filled = {"example", "examples"} & {*parameter, *parameter["schema"]}
            assert parameter.get("required") or not filled, parameter
    named = operations["predict"]["parameters"][0]
    assert (named["name"], named["example"]) == ("name", "digits")
