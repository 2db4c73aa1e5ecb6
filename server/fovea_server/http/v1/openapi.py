"""Completes the OpenAPI document that FastAPI creates from the routes, and serves Swagger UI.

The buttons of the page send requests. Other sites may not embed the page in a frame, so that they
cannot lure a user into a click.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from fovea_engines.results.new_image import MediaType
from fovea_engines.results.options import PredictOptions
from fovea_server.dataplane.options import CLASSES_AS_TEXT
from fovea_server.dataplane.service import Service
from fovea_server.http.v1.schemas import ErrorAnswer, PredictAnswer, PredictJson
from fovea_server.models.model import State
from fovea_server.setting_types import ROOT_PATH

_BINARY = {"type": "string", "format": "binary"}
_OPTIONS = [option.name for option in fields(PredictOptions)]
_KEY = "a key of `fovea key add`"
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": _KEY},
    "api_key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": _KEY},
}
BodyKind = Literal["application/octet-stream", "multipart/form-data", "application/json"]
_BODIES: dict[BodyKind, tuple[str, dict[str, Any]]] = {
    "application/octet-stream": ("one encoded image file, e.g. a JPEG", _BINARY),
    "multipart/form-data": (
        "a form with an image in each file part",
        {"$ref": "#/components/schemas/PredictForm"},
    ),
    "application/json": (
        "images as base64 or URLs",
        {"$ref": "#/components/schemas/PredictJson"},
    ),
}
_DEADLINE = {
    "name": "X-Request-Timeout-Ms",
    "in": "header",
    "required": False,
    "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 3_600_000},
    "description": "timeout in milliseconds; after it, the status is 504 and the work stops",
}
# Content Security Policy of the page. It allows inline styles, which Swagger UI sets, and images in
# responses.
_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fovea: API</title>
<link rel="icon" href="{scripts}/favicon.png">
<link rel="stylesheet" href="{scripts}/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="{scripts}/swagger-ui-bundle.js"></script>
<script>{start}</script>
</body>
</html>
"""
# Script that starts Swagger UI. The list of schemas below the routes is collapsed at first.
_START = """
const address = new URL("openapi.json", location.href);
fetch(address).then((answer) => answer.json()).then((spec) => SwaggerUIBundle({
  spec: { servers: [{ url: new URL(".", address).pathname }], ...spec },
  dom_id: "#swagger-ui",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
}));
"""
_PREFIX = "X-Forwarded-Prefix"
MODEL_EXAMPLE = "yolov8n"
"""Placeholder for a model name. The server replaces it by a model that the client may see."""
_ERRORS = {
    400: "the request or its only image is invalid, or the body arrives too slowly",
    401: "the API key is missing or invalid",
    403: "the secret of a restricted API is missing or wrong, or the key does not allow this",
    404: "no such model or version",
    409: "a later frame of the stream was already tracked, or a stream with this ID exists",
    413: "the body or the image exceeds the limit",
    422: "an option or a class is unknown, out of range, or not for the model's task",
    429: "too many requests are in flight; send the request again after `Retry-After` seconds",
    503: "the server or the model is not ready, the server is stopping, or its memory is full",
    504: "no response within X-Request-Timeout-Ms",
}


def describe_route(
    operation_id: str,
    answer: type[BaseModel] | None,
    *errors: int,
    body: type[BaseModel] | None = None,
) -> dict[str, Any]:
    """Return arguments for FastAPI's route decorator: operation ID, response and errors.

    Args:
        operation_id: name of the operation in generated clients.
        answer: schema of the JSON response; None if the response is not JSON.
        errors: HTTP statuses of possible errors.
        body: schema of a JSON body that the route parses itself.
    """
    # A server with secrets for restricted APIs (403) may require API keys instead, so 401 is
    # documented with 403.
    stated = sorted({*errors, *({401} if 403 in errors else ())})
    responses: dict[int | str, Any] = {
        status: {"model": ErrorAnswer, "description": _ERRORS[status]} for status in stated
    }
    responses["default"] = {"model": ErrorAnswer, "description": "any other error, e.g. 500"}
    made = {"operation_id": operation_id, "response_model": answer, "responses": responses}
    if body is not None:
        content = {"application/json": {"schema": body.model_json_schema()}}
        made["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return made


def describe_file(
    operation_id: str, text: str, media: Sequence[str], *errors: int
) -> dict[str, Any]:
    """Return arguments for FastAPI's route decorator, for a route that returns a file.

    The file has one of the content types in `media`.
    """
    route = describe_route(operation_id, None, *errors)
    content = {each: {"schema": _BINARY} for each in media}
    route["responses"][200] = {"description": text, "content": content}
    return route | {"response_class": Response}


def describe_prediction(operation_id: str, kind: BodyKind) -> dict[str, Any]:
    """Return arguments for FastAPI's route decorator, for a route that runs a model on images."""
    # If the body is a single image, it has no place for options, so they are query parameters.
    options = _parameters() if kind == "application/octet-stream" else []
    return describe_images(operation_id, PredictAnswer, kind, options, *_ERRORS)


def describe_images(
    operation_id: str,
    answer: type[BaseModel],
    kind: BodyKind,
    parameters: Sequence[dict[str, Any]],
    *errors: int,
) -> dict[str, Any]:
    """Return arguments for FastAPI's route decorator, for a route that parses images itself.

    The route also parses the query `parameters` itself. An operation has one type of body and one
    type of response, because generated clients cannot choose between types.
    """
    text, schema = _BODIES[kind]
    body = {"required": True, "description": text, "content": {kind: {"schema": schema}}}
    extra = {"parameters": [*parameters, _DEADLINE], "requestBody": body}
    return describe_route(operation_id, answer, *errors) | {"openapi_extra": extra}


def describe_drawing(operation_id: str) -> dict[str, Any]:
    """Return arguments for FastAPI's route decorator, for a route that draws on an image."""
    route = describe_prediction(operation_id, "application/octet-stream")
    images = {kind: {"schema": _BINARY} for kind in get_args(MediaType)}
    route["responses"][200] = {
        "description": ("the image, in the format of the Accept header"),
        "content": images,
    }
    return route | {"response_model": None, "response_class": Response}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the completed document with examples."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    made = FastAPI.openapi(app)
    schemas = made["components"]["schemas"]
    operations = [operation for path in made["paths"].values() for operation in path.values()]
    schemas.update(_request_schemas())
    for operation in operations:
        schemas.update(_named_bodies(operation))
        # Replace FastAPI's summary, which is the name of the function.
        operation["summary"] = operation["description"].partition("\n\n")[0]
    made["components"]["securitySchemes"] = _SCHEMES
    # Most servers require no key. The empty entry allows requests without a key.
    made["security"] = [{}, *({name: []} for name in _SCHEMES)]
    for schema in schemas.values():
        # Keep the first paragraph of a docstring, because the other paragraphs are for readers of
        # the code.
        schema["description"] = schema.get("description", "").partition("\n\n")[0]
        for field in schema.get("properties", {}).values():
            # A field that may be absent is never null, so null must not be its default.
            if field.get("default", False) is None:
                del field["default"]
    examples = json.loads(Path(__file__).with_name("examples.json").read_text("utf-8"))
    for name, schema in schemas.items():
        # Some schemas contain their own examples. Move them to the examples of the document.
        if own := schema.pop("examples", None):
            examples[name] = {"one": own[0]}
    for operation in operations:
        _add_examples(operation, examples)
    return made


def document_route(app: FastAPI) -> Callable[[Request], Awaitable[Response]]:
    """Make the endpoint of the document. Paths in the document fit the URL that the client uses."""

    @lru_cache(16)
    def written(root: str, model: str) -> bytes:
        made = document(app)
        for operation in (each for path in made["paths"].values() for each in path.values()):
            for parameter in operation.get("parameters", ()):
                if parameter["schema"].get("examples") == [MODEL_EXAMPLE]:
                    parameter["example"] = model
        servers = {"servers": [{"url": root}]} if root else {}
        return json.dumps(made | servers).encode()

    async def answer(request: Request) -> Response:
        service: Service = app.state.service
        seen = (each for each in service.models if each.state is State.READY and each.takes_images)
        model = min((each.name for each in seen), default=MODEL_EXAMPLE)
        content = written(_root(request, service.settings.root_path), model)
        return Response(content, 200, {"Vary": _PREFIX}, "application/json")

    return answer


def _root(request: Request, root: str) -> str:
    """Return the path prefix under which a proxy serves this server, or "" if there is none."""
    given = root or request.scope.get("root_path", "") or request.headers.get(_PREFIX, "")
    return given.rstrip("/") if ROOT_PATH.fullmatch(given) else ""


def docs_page(scripts: str) -> Callable[[Request], Awaitable[Response]]:
    """Make the endpoint of the page. The page loads its scripts from the path `scripts`.

    All links in the page are relative, because a proxy may serve the page under a path prefix that
    is unknown to this server.
    """
    digest = b64encode(hashlib.sha256(_START.encode()).digest()).decode()
    content = _PAGE.format(scripts=scripts.strip("/"), start=_START)
    headers = {
        "Content-Security-Policy": f"script-src 'self' 'sha256-{digest}'; {_POLICY}",
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }

    async def docs(request: Request) -> Response:
        return Response(content, 200, headers, "text/html")

    return docs


def _named_bodies(operation: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Replace schemas with a title by references, and yield the schemas as (name, schema).

    FastAPI does not collect the schemas of bodies that a route parses itself.
    """
    for body in operation.get("requestBody", {}).get("content", {}).values():
        if name := body["schema"].get("title"):
            yield name, body["schema"]
            body["schema"] = {"$ref": f"#/components/schemas/{name}"}


def _add_examples(operation: dict[str, Any], examples: dict[str, Any]) -> None:
    bodies = [("200", operation.get("requestBody", {})), *operation["responses"].items()]
    for status, body in bodies:
        content = body.get("content", {}).get("application/json", {})
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        # Only schemas of this API get examples. Compatible APIs of other software have their own
        # documentation.
        given = examples["errors"][status] if name == "ErrorAnswer" else examples.get(name, {})
        if given:
            content["examples"] = {key: {"value": value} for key, value in given.items()}


@cache
def _request_schemas() -> dict[str, Any]:
    """Return the schemas of bodies that routes parse themselves.

    FastAPI does not find these schemas.
    """
    request = PredictJson.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = request.pop("$defs")
    for option in request["properties"].values():
        # Remove the default, because generated clients send every default in the document. In a
        # form, such a default would take precedence over an option in the URL.
        if (default := option.pop("default", None)) is not None:
            option["description"] += f"; default {json.dumps(default)}"
    options = {name: _in_text(request["properties"][name]) for name in _OPTIONS}
    form = {
        "title": "PredictForm",
        "type": "object",
        "description": "A form with an image in each file part.",
        "required": ["file"],
        "properties": {
            "file": {"type": "array", "items": _BINARY},
            **options,
            # In a form, `classes` is text and may be repeated.
            "classes": {
                "type": "array",
                "items": {"type": "string"},
                "description": CLASSES_AS_TEXT,
            },
        },
    }
    return {**schemas, "PredictJson": request, "PredictForm": form}


def _in_text(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an option as text in a query or a form. Text has no null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**kinds[0], **{name: each for name, each in schema.items() if name != "anyOf"}}


def _parameters() -> list[dict[str, Any]]:
    """Return the OpenAPI query parameters for the options.

    The parameters have no examples, because Swagger UI would send all examples as values.
    """
    properties = _request_schemas()["PredictForm"]["properties"]
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "schema": properties[name],
            "description": properties[name]["description"],
        }
        for name in _OPTIONS
    ]
