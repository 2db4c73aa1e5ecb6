"""HEAD has the whole interface of an older version: help, OpenAPI, metrics, logs and errors."""

import json
from collections.abc import Callable

import httpx
import pytest
from tests.keyed import until
from tests.serving import RunningServer
from tests.upgrade.conftest import Fovea, Responses
from tests.upgrade.interface import (
    Table,
    differences,
    error_table,
    help_table,
    log_table,
    metrics_table,
    newly_required,
    openapi_table,
    read_helps,
)
from tests.upgrade.recording import load
from tritonclient import grpc

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
    **{
        f"fovea promote --max-{limit}: default was 'any', and is 'prose'": "it is `no limit`"
        for limit in ("p99", "disagreement")
    },
    "fovea tune --p99: default was": "without a limit the result answered after seconds",
    "fovea build --profile: default was '1,N,N": "a single image has kernels of its own",
    **{
        f"fovea bench --{option}: is gone": "benchmarks/mlperf.py runs LoadGen"
        for option in ("mlperf", "over", "quick", "p99", "logs")
    },
    **{
        f"fovea {command} --version: default was": "it is the version that servers use"
        for command in ("bench", "eval", "index", "predict")
    },
    "fovea shadow: usage was 'fovea shadow [OPTIONS] MODEL [[VERSION]]'": "one pair is enough",
    "fovea history": "`fovea versions --history` does the same; the name works, and is not listed",
    **{
        f"{where}normalise: is gone": "it is normalize; requests may have either name"
        for where in (*_PREDICT, *_STREAMS)
    },
    "unsupported: v1": "only WebSockets without their package have this error, always with 501",
}
"""Intended changes: the beginning of the line that the test prints, and the reason."""
DOCUMENTED = (
    "every line",
    "fovea_server.access",
    "fovea_server.access, gRPC",
    "fovea_server.control",
)
"""The logs that the pages name. Other logs have names of modules, which may move."""


def check_kept(found: list[str]) -> None:
    unintended = [each for each in found if not each.startswith(tuple(INTENDED))]
    assert not unintended, "\n".join(unintended)


def test_help(fovea: Fovea, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> str:
        # `serve --help` shows only the most used flags.
        code, out, _ = fovea(*(arguments if arguments[0] != "serve" else ("serve", "--help-all")))
        assert code == 0
        return out

    check_kept(differences(help_table(load("help.json")), help_table(read_helps(run))))


def test_errors() -> None:
    check_kept(differences(load("errors.json"), error_table()))


@pytest.mark.slow
def test_openapi(server: RunningServer) -> None:
    old = openapi_table(load("openapi.json"))
    new = openapi_table(httpx.get(f"{server.url}/openapi.json").json())
    check_kept([*differences(old, new), *newly_required(old, new)])


@pytest.mark.slow
def test_metrics(server: RunningServer, responses: Responses) -> None:
    check_kept(differences(load("metrics.json"), metrics_table(server.metrics())))


@pytest.mark.slow
def test_log(server: RunningServer, responses: Responses) -> None:
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.get_model_metadata("digits")
    httpx.get(f"{server.url}/v1/models", headers={"x-request-id": "the-last"})
    until(lambda: "the-last" in server.log.read_text())
    text = server.log.read_text().rpartition("\n")[0]
    old, new = load("log.json"), log_table(text)
    check_kept(differences({name: old[name] for name in DOCUMENTED}, new))
    before, after = (
        {name for row in each.values() for name in row["names"]} for each in (old, new)
    )
    check_kept(sorted(before - after))
    levels = {json.loads(line)["level"] for line in text.splitlines()}
    assert levels <= {"DEBUG", "INFO", "WARNING", "ERROR"}


@pytest.mark.parametrize(
    ("document", "read", "before", "after", "found"),
    [
        ("help", help_table, "--conf NUMBER ", "--score NUMBER ", "fovea predict --conf: is gone"),
        ("help", help_table, "default: 0.25", "default: 0.3", "fovea predict --conf: default was"),
        ("help", help_table, "--mask FORM", "--mask [a|b]", "fovea predict --mask: choices was"),
        ("openapi", openapi_table, "{name}/drift", "{name}/moved", "GET /v1/models/{name}/drift"),
        (
            "openapi",
            openapi_table,
            '"maximum": 1,',
            '"maximum": 2,',
            "POST /v1/models/{name}/predict",
        ),
        ("openapi", openapi_table, '"x1"', '"left"', "POST /v1/models/{name}/predict 200"),
        ("openapi", openapi_table, '"429"', '"428"', "POST /v1/models/{name}/predict 429: is gone"),
        (
            *("openapi", openapi_table, '"parameters": ['),
            '"parameters": [{"name": "w", "in": "query", "required": true, "schema": {}}, ',
            "POST /v1/models/{name}/predict query w: is new and required",
        ),
    ],
)
def test_a_change_is_found(
    document: str, read: Callable[..., Table], before: str, after: str, found: str
) -> None:
    text = json.dumps(load(f"{document}.json"))
    old, new = (read(json.loads(each)) for each in (text, text.replace(before, after)))
    changes = [*differences(old, new), *newly_required(old, new)]
    assert any(each.startswith(found) for each in changes), changes
    assert not differences(old, old)
