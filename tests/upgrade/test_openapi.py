"""HEAD's OpenAPI document has all of the older one, with the same meaning."""

import copy
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.serving import RunningServer
from tests.upgrade.recorded import load
from tests.upgrade.surface import differences, newly_required, openapi_table, unintended

pytestmark = pytest.mark.slow

_PREDICT = [
    f"POST /v1/models/{{name}}/{version}{route}"
    for version in ("", "versions/{version}/")
    for route in (
        *("predict query ", "predict/form body multipart/form-data."),
        *("predict/json body application/json.", "annotate query "),
        "embed body application/json.",
    )
]
_STREAMS = (
    *("GET /v1/streams 200 application/json.streams[].", "POST /v1/streams body application/json."),
    "POST /v1/streams 201 application/json.",
    *(
        f"{method} /v1/streams/{{stream}} {part} application/json."
        for method, part in (("GET", "200"), ("PATCH", "body"), ("PATCH", "200"))
    ),
)
INTENDED = {
    f"{where}normalise: is gone": "it is normalize; requests may have either name"
    for where in (*_PREDICT, *_STREAMS)
}
"""Intended changes: the beginning of the line that the test prints, and the reason."""


def test_openapi(server: RunningServer) -> None:
    new = httpx.get(f"{server.url}/openapi.json").json()
    found = unintended(_between(load("openapi.json"), new), INTENDED)
    assert not found, found


def _between(old: Any, new: Any) -> list[str]:
    before, after = openapi_table(old), openapi_table(new)
    return [*differences(before, after), *newly_required(before, after)]


def _without_a_path(document: Any) -> None:
    document["paths"].pop("/v1/models/{name}/drift")


def _other_default(document: Any) -> None:
    parameters = document["paths"]["/v1/models/{name}/predict"]["post"]["parameters"]
    next(each for each in parameters if each["name"] == "conf")["schema"]["default"] = 0.5


def _required(document: Any) -> None:
    parameters = document["paths"]["/v1/models/{name}/predict"]["post"]["parameters"]
    parameters.append({"name": "w", "in": "query", "required": True, "schema": {}})


def _other_name(document: Any) -> None:
    [schema] = [each for name, each in document["components"]["schemas"].items() if name == "Box"]
    schema["properties"]["left"] = schema["properties"].pop("x1")


def _without_a_status(document: Any) -> None:
    document["paths"]["/v1/models/{name}/predict"]["post"]["responses"].pop("429")


@pytest.mark.parametrize(
    "change", [_without_a_path, _other_default, _required, _other_name, _without_a_status]
)
def test_what_is_changed_is_told(change: Callable[[Any], None]) -> None:
    old = load("openapi.json")
    change(new := copy.deepcopy(old))
    assert _between(old, new)
    assert not _between(old, old)
