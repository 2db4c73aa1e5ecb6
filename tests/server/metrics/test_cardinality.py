"""Clients choose no label: the names that they make up add no series."""

from contextlib import suppress

import grpc
import httpx
import numpy as np
import pytest
from tests.conftest import DEMO
from tests.server.metrics.conftest import EXPLICIT, scrape, series
from tests.serving import start_server
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.real

NAMES = 200


def count(server) -> int:
    return sum(map(len, series(scrape(server)).values()))


@pytest.fixture
def server(demo_repository, tmp_path):
    server = start_server(demo_repository, tmp_path, (*EXPLICIT, "--log-access=false"))
    yield server
    assert server.stop() == 0


def test_unknown_models_add_no_series(server):
    tensor = InferInput("x", (1,), "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    address = f"127.0.0.1:{server.grpc_port}"
    with httpx.Client(base_url=server.url) as http, InferenceServerClient(address) as rpc:

        def ask(name: str) -> None:
            """Use the name wherever a client may name a model."""
            assert http.post(f"/v1/models/{name}/predict", content=b"x").status_code == 404
            assert http.post(f"/v2/models/{name}/infer", json={}).status_code in (400, 404)
            assert http.get(f"/v1/models/{name}/statistics").status_code == 404
            with pytest.raises(InferenceServerException, match="not found"):
                rpc.infer(name, [tensor])

        # A request is counted after its answer is sent: of the second each kind has been.
        ask("first")
        ask("second")
        before = count(server)
        for number in range(NAMES):
            ask(f"unknown-{number}")
        assert count(server) == before


def test_names_in_other_places_add_no_series(server):
    image, tensor = (DEMO / "scene-1.jpg").read_bytes(), InferInput("x", (1,), "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    address = f"127.0.0.1:{server.grpc_port}"
    with (
        httpx.Client(base_url=server.url) as http,
        InferenceServerClient(address) as rpc,
        grpc.insecure_channel(address) as channel,
    ):

        def ask(name: str, version: int) -> None:
            """Use them as a version, a method, a path, an option and in headers."""
            for missing in (name, version):
                path = f"models/digits/versions/{missing}"
                assert http.post(f"/v1/{path}/predict", content=image).status_code >= 400
                assert http.post(f"/v2/{path}/infer", json={}).status_code >= 400
                with pytest.raises(InferenceServerException):
                    rpc.infer("digits", [tensor], model_version=str(missing))
            assert http.request(name.upper(), "/v1/models/digits/predict").status_code >= 400
            assert http.get(f"/{name}").status_code == 404
            options = {"params": {name: "1"}, "headers": {"x-request-id": name, "user-agent": name}}
            assert http.post("/v1/models/digits/predict", content=b"", **options).status_code >= 400
            with suppress(grpc.RpcError):
                channel.unary_unary(f"/inference.GRPCInferenceService/{name}")(b"")

        ask("first", 1_000_000)
        before = count(server)
        for number in range(NAMES):
            ask(f"other{number}", 2 + number)
        assert count(server) == before


def test_loads_of_unknown_models_add_no_series(server):
    with httpx.Client(base_url=server.url) as http:

        def ask(name: str) -> None:
            assert http.post(f"/v2/repository/models/{name}/load", json={}).status_code >= 400
            http.post(f"/v2/repository/models/{name}/unload", json={})

        ask("first")
        before = count(server)
        for number in range(NAMES):
            ask(f"other{number}")
        assert count(server) == before
