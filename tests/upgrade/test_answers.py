"""HEAD answers over HTTP, over gRPC and to both clients as an older version did."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.serving import RunningServer
from tests.upgrade import client_calls, grpc_calls
from tests.upgrade.compare import check_same
from tests.upgrade.conftest import Responses
from tests.upgrade.http_requests import list_requests
from tests.upgrade.recording import DATA, load
from tritonclient import grpc

from fovea_client import Client

pytestmark = pytest.mark.slow

HTTP, GRPC, CLIENT = load("answers.json"), load("grpc.json"), load("client.json")
IMAGES = DATA / "images"
CALLS = grpc_calls.list_calls(IMAGES)
OLD_CLIENT = next(DATA.glob("fovea_client-*.whl"))


@pytest.mark.parametrize("name", HTTP)
def test_http(name: str, responses: Responses) -> None:
    check_same(HTTP[name], responses[name], name)


@pytest.fixture(scope="module")
def grpc_client(
    server: RunningServer, responses: Responses
) -> Iterator[grpc.InferenceServerClient]:
    """A client of the server, after the requests over HTTP, as in the record."""
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        yield client


@pytest.mark.parametrize("name", GRPC)
def test_grpc(name: str, grpc_client: grpc.InferenceServerClient) -> None:
    check_same(GRPC[name], grpc_calls.send(grpc_client, CALLS[name]), f"gRPC {name}")


@pytest.fixture(scope="module", params=["old", "new"])
def client_results(
    request: pytest.FixtureRequest, server: RunningServer, responses: Responses
) -> Responses:
    """The results of the older client, from its wheel, or of HEAD's, from HEAD's server."""
    environment = {**os.environ}
    if request.param == "old":
        environment["PYTHONPATH"] = str(OLD_CLIENT)
    command = [sys.executable, client_calls.__file__, server.url, IMAGES]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    printed = json.loads(run.stdout)
    assert Path(printed["file"]).is_relative_to(OLD_CLIENT) == (request.param == "old")
    results: Responses = printed["results"]
    return results


@pytest.mark.parametrize("name", CLIENT)
def test_client(name: str, client_results: Responses) -> None:
    check_same(CLIENT[name], client_results[name], f"client, {name}")


def test_heads_client_reads_recorded_responses() -> None:
    """HEAD's client works with a server that was not upgraded yet."""
    # The first request with a path is the plain one.
    recorded = {
        (each.method, each.path): HTTP[each.name] for each in reversed(list_requests(IMAGES))
    }

    def respond(request: httpx.Request) -> httpx.Response:
        response = recorded[request.method, request.url.raw_path.decode()]
        return httpx.Response(response["status"], json=response["body"])

    names = {"models", "model", "card", "ready", "ready digits", "no such model", "not ready"}
    names |= {f"predict {model}" for model in client_calls.IMAGES}
    with Client("http://recorded", transport=httpx.MockTransport(respond)) as client:
        calls = client_calls.list_calls(client, IMAGES)
        for name in names:
            check_same(CLIENT[name], client_calls.send(calls[name]), name)
