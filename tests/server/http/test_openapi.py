"""The OpenAPI document is valid, and true of what is answered; each route asks for its secret."""

import asyncio
import json
import re
from dataclasses import fields
from importlib.metadata import version
from typing import Any

import httpx
import openapi_spec_validator
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from fovea_engines.results.options import PredictOptions
from fovea_server.app import build_app
from fovea_server.auth.restrictions import APIS
from fovea_server.http.application import create_application
from fovea_server.settings import Settings

pytestmark = pytest.mark.slow

JSON, IMAGE, FORM = "application/json", ["application/octet-stream"], ["multipart/form-data"]
DRAWN = ["image/jpeg", "image/png", "image/webp"]
OF_STREAMS = [["image/jpeg"], ["text/event-stream", "application/x-ndjson"]]
OF_SHADOWS = [["text/markdown"]]


@pytest.fixture(scope="module")
def spec(ask) -> dict[str, Any]:
    return ask("GET", "/openapi.json").json()


@pytest.fixture(scope="module")
def operations(spec) -> dict[str, dict[str, Any]]:
    return {each["operationId"]: each for path in spec["paths"].values() for each in path.values()}


@pytest.fixture(scope="module")
def check(spec):
    """Hold a value to a schema of the document."""
    resource = Resource(contents=spec, specification=DRAFT202012)
    registry = Registry().with_resource("urn:spec", resource)

    def hold(schema: dict[str, Any], value: Any) -> None:
        pointer = {"$ref": f"urn:spec{schema['$ref']}"}
        Draft202012Validator(pointer, registry=registry).validate(value)

    return hold


def test_the_document_is_valid_and_its_examples_fit_their_named_schemas(spec, operations, check):
    openapi_spec_validator.validate(spec)
    assert spec["info"]["version"] == version("fovea-serve")
    for name, operation in operations.items():
        assert operation["description"], name
        contents = [answer["content"] for answer in operation["responses"].values()]
        if "requestBody" in operation:
            contents.append(operation["requestBody"]["content"])
        for content in contents:
            if not (body := content.get(JSON)):
                assert list(content) in (IMAGE, FORM, DRAWN, *OF_STREAMS, *OF_SHADOWS), name
                continue
            assert body["examples"], name
            for example in body["examples"].values():
                check(body["schema"], example["value"])


def test_an_operation_has_one_type_of_body_and_one_of_answer_and_errors_one_schema(operations):
    error = {"$ref": "#/components/schemas/ErrorAnswer"}
    for operation in operations.values():
        assert "default" in operation["responses"]
        for status, answer in operation["responses"].items():
            if status not in ("200", "201"):
                assert answer["content"][JSON]["schema"] == error
    told = {"400", "403", "404", "413", "422", "429", "503", "504"}
    assert told < set(operations["predict"]["responses"])
    kinds = {"predict": IMAGE, "predict_form": FORM, "annotate": IMAGE, "search": IMAGE}
    for name in ("predict", "predict_form", "predict_json", "annotate", "search"):
        for operation in (operations[name], operations[f"{name}_version"]):
            assert list(operation["requestBody"]["content"]) == kinds.get(name, [JSON])
            answer = DRAWN if name == "annotate" else [JSON]
            assert list(operation["responses"]["200"]["content"]) == answer


def test_options_are_typed_and_in_the_address_where_the_body_is_an_image(spec, operations):
    types = {
        name: {p["name"]: p["schema"]["type"] for p in each["parameters"] if p["in"] == "query"}
        for name, each in operations.items()
        if "requestBody" in each and "predict" in each["tags"]
    }
    options = {each.name for each in fields(PredictOptions)}
    assert types["predict"] == types["annotate"]
    assert types["predict"].keys() == options
    some = {"conf": "number", "max_det": "integer", "agnostic": "boolean", "classes": "array"}
    assert some.items() <= types["predict"].items()
    [search] = [p for p in operations["search"]["parameters"] if p["name"] == "k"]
    assert search["schema"] == {"type": "integer", "minimum": 1, "maximum": 1000}
    assert types["predict_form"] == types["predict_json"] == {}
    for body in ("PredictForm", "PredictJson"):
        assert options < spec["components"]["schemas"][body]["properties"].keys()
    for operation in operations.values():
        for parameter in operation.get("parameters", ()):
            # Swagger UI sends what it is filled in with, and most options are of other tasks.
            filled = {"example", "examples"} & {*parameter, *parameter["schema"]}
            assert parameter.get("required") or not filled, parameter
            assert parameter["name"] not in options or not parameter["required"], parameter
    named = operations["predict"]["parameters"][0]
    assert (named["name"], named["example"]) == ("name", "digits")


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
        ("/v1/models/digits/predict", "predict"),
        ("/v1/models/digits/predict?conf=7", "predict"),
        ("/v1/models/digits/predict?classes=persn", "predict"),
        ("/v1/models/nobody/predict", "predict"),
    ],
)
def test_what_is_answered_is_as_described(ask, scene, operations, check, path, operation):
    asked = {"method": "POST", "content": scene} if operation == "predict" else {"method": "GET"}
    answer = ask(url=path, **asked)
    described = operations[operation]["responses"][str(answer.status_code)]
    check(described["content"][JSON]["schema"], answer.json())


def test_the_documentation_page_shows_it(ask):
    page = ask("GET", "/docs")
    assert page.status_code == 200
    assert "swagger" in page.text.lower()
    assert "openapi.json" in page.text


# The document has no WebSockets.
SOCKETS = ["/v1/models/1/stream", "/v1/models/1/versions/1/stream", "/v1/streams/1/events"]
WISH = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "1"}


def test_no_operation_is_answered_without_its_secret(tmp_path):
    """A new route is not open to all."""
    settings = Settings(
        model_repository=[tmp_path],
        api=["deepstack", "label-studio", "roboflow"],
        http_restricted_api=[f"{','.join(APIS)}:key=secret"],
    )
    application = create_application(build_app(settings))

    async def ask() -> list[tuple[str, str, httpx.Response]]:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            paths = (await client.get("/openapi.json")).json()["paths"]
            asked = [(method, path, {}) for path, methods in paths.items() for method in methods]
            asked += [("GET", path, WISH) for path in SOCKETS]
            named = re.compile(r"\{\w+\}")
            return [
                (method, path, await client.request(method, named.sub("1", path), headers=headers))
                for method, path, headers in asked
            ]

    found = asyncio.run(ask())
    assert len(found) > 30 + len(SOCKETS)
    assert [each for each in found if each[2].status_code != 403] == []
    assert {each[2].json()["error"]["code"] for each in found[-len(SOCKETS) :]} == {"restricted"}
