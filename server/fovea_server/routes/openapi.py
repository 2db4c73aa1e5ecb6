"""What the OpenAPI page says of routes whose bodies are read by hand."""

from __future__ import annotations

from typing import Any

from fovea_server.schemas import ErrorAnswer, PredictAnswer, PredictRequest

_BINARY = {"schema": {"type": "string", "format": "binary"}}


def _json_request() -> dict[str, Any]:
    """The JSON request in one piece: what FastAPI does not know, it does not collect."""
    schema = PredictRequest.model_json_schema()
    schema["properties"]["images"]["items"] = schema.pop("$defs")["ImageSource"]
    return schema


_JSON_REQUEST = _json_request()


def _query(name: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """An option as a parameter of the address; as it is in the JSON request, unless given."""
    schema = schema or _JSON_REQUEST["properties"][name]
    return {
        "name": name,
        "in": "query",
        "required": False,
        "schema": schema,
        "description": schema["description"],
    }


_PARAMETERS = [
    _query("conf"),
    _query("iou"),
    _query(
        "classes",
        {"type": "string", "description": "class ids to keep, separated by commas; default all"},
    ),
    _query("max_det"),
    _query("agnostic"),
    {
        "name": "X-Request-Timeout-Ms",
        "in": "header",
        "required": False,
        "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 3_600_000},
        "description": "after this the answer is 504 and work on it stops",
    },
]

_ERRORS = {
    400: "the request, or its only picture, cannot be understood",
    403: "a header that the operator asks for is missing or wrong",
    404: "no such model or version",
    408: "the body did not arrive in time",
    413: "the body or the picture is over the limit",
    422: "an option is unknown or out of its range",
    429: "too much is waiting; send again after `Retry-After` seconds",
    503: "the model is not ready, or the server is stopping",
    504: "no answer within X-Request-Timeout-Ms",
}

PREDICT: dict[str, Any] = {
    "response_model": PredictAnswer,
    "responses": {
        200: {"content": {"image/jpeg": _BINARY, "image/png": _BINARY}},
        **{
            status: {"model": ErrorAnswer, "description": description}
            for status, description in _ERRORS.items()
        },
    },
    "openapi_extra": {
        "parameters": _PARAMETERS,
        "requestBody": {
            "required": True,
            "content": {
                "image/*": _BINARY,
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "file": {"type": "array", "items": _BINARY["schema"]},
                        },
                    }
                },
                "application/json": {"schema": _JSON_REQUEST},
            },
        },
    },
}
