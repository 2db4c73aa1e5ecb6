"""A server of a network: what strangers may ask it, and what programs of its own machine may."""

import socket

import grpc
import httpx
import pytest
from tests.keyed import tensor
from tests.serving import RunningServer
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

OF_PROXIES = ("X-Forwarded-For", "x-forwarded-host", "X-Forwarded-Proto", "Forwarded", "Via")
CHANGES = ("/v2/logging", "/v2/trace/setting", "/v2/repository/models/digits/load")


@pytest.fixture(scope="module")
def own_address() -> str:
    """An address of this machine that is not loopback: nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


@pytest.fixture
def wide(serve, demo_repository):
    """Start a server that listens on every address."""

    def start(*flags: str) -> RunningServer:
        return serve(
            demo_repository,
            "--http-address=0.0.0.0",
            "--model-control-mode=explicit",
            "--load-model=digits",
            *flags,
        )

    return start


def test_models_and_the_log_are_controlled_from_the_machine_alone(wide, own_address):
    server = wide()
    stranger = f"http://{own_address}:{server.port}"
    for path in CHANGES:
        refused = httpx.post(stranger + path, json={})
        assert refused.status_code == 403
        assert "--no-keys" in refused.json()["error"]
        assert httpx.post(server.url + path, json={}).status_code == 200
        # A proxy on this machine speaks for others.
        for header in OF_PROXIES:
            proxied = httpx.post(server.url + path, json={}, headers={header: "192.0.2.7"})
            assert proxied.status_code == 403
    with InferenceServerClient(f"{own_address}:{server.grpc_port}") as client:
        for change in (
            lambda: client.update_log_settings({"log_info": False}),
            lambda: client.update_trace_settings(settings={"trace_rate": "5"}),
            lambda: client.unload_model("digits"),
            lambda: client.load_model("digits"),
        ):
            with pytest.raises(InferenceServerException, match="--no-keys"):
                change()
        assert client.is_model_ready("digits")
    with InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        with pytest.raises(InferenceServerException) as refused_proxy:
            client.unload_model("digits", headers={"x-forwarded-for": "192.0.2.7"})
        assert refused_proxy.value.status() == str(grpc.StatusCode.UNAVAILABLE)
        client.update_log_settings({"log_info": False, "log_warning": False, "log_error": False})
        client.unload_model("digits")
    assert server.stop() == 0
    # Whoever silenced the log, and what he did then, is in it.
    lines = [each for each in server.log.read_text().splitlines() if "fovea_server.control" in each]
    said = "\n".join(lines)
    assert f"POST '/v2/logging' by {own_address}: 403" in said
    assert "POST '/v2/logging' by 127.0.0.1: 200" in said
    assert f"RepositoryModelUnload by {own_address}: UNAVAILABLE" in said
    assert "LogSettings by 127.0.0.1: OK" in said
    assert (
        lines[-1]
        .partition(" id=")[0]
        .endswith("RepositoryModelUnload of 'digits' by 127.0.0.1: OK")
    )


def test_strangers_without_a_key_predict_and_ask_for_health_and_nothing_else(
    wide, own_address, scene
):
    server = wide()
    stranger, own = f"http://{own_address}:{server.port}", server.url
    for path in ("/v2/health/ready", "/v1/health/live", "/v2/models/digits/ready", "/docs"):
        assert httpx.get(stranger + path).status_code == 200
    predicted = httpx.post(f"{stranger}/v1/models/digits/predict", content=scene)
    assert predicted.json()["images"][0]["detections"]
    for path in ("/v2", "/v1/models", "/v1/models/digits", "/v2/models/digits/config"):
        refused = httpx.get(stranger + path)
        assert (refused.status_code, "--keys FILE" in refused.text) == (403, True), path
        assert httpx.get(own + path).status_code == 200
    assert httpx.post(f"{stranger}/v2/repository/index").status_code == 403
    metrics = f":{server.metrics_port}/metrics"
    assert httpx.get(f"http://{own_address}{metrics}").status_code == 403
    assert httpx.get(f"http://127.0.0.1{metrics}").status_code == 200
    with InferenceServerClient(f"{own_address}:{server.grpc_port}") as client:
        assert client.is_model_ready("digits")
        assert client.infer("digits", [tensor()])
        for asked in (client.get_server_metadata, client.get_log_settings):
            with pytest.raises(InferenceServerException, match="--keys FILE"):
                asked()
    [said] = [each for each in server.log.read_text().splitlines() if "other machines may" in each]
    assert "HTTP at 0.0.0.0 and gRPC at 0.0.0.0" in said


def test_strangers_control_with_a_secret_or_where_they_may(wide, own_address):
    secrets = "model-repository,logging:admin=s3cret"
    server = wide(f"--http-restricted-api={secrets}", f"--grpc-restricted-protocol={secrets}")
    stranger = f"http://{own_address}:{server.port}"
    for path in ("/v2/logging", "/v2/repository/models/digits/load"):
        assert httpx.post(stranger + path, json={}).status_code == 403
        assert httpx.post(stranger + path, json={}, headers={"admin": "s3cret"}).status_code == 200
    # It has no secret.
    assert httpx.post(f"{stranger}/v2/trace/setting", json={}).status_code == 403
    with InferenceServerClient(f"{own_address}:{server.grpc_port}") as client:
        client.load_model("digits", headers={"triton-grpc-protocol-admin": "s3cret"})
    assert server.stop() == 0
    assert f"load' by {own_address} with admin: 200" in server.log.read_text()
    assert "s3cret" not in server.log.read_text()

    opened = wide("--no-keys", "--cors-origin=*", "--no-allow-metrics")
    for path in CHANGES:
        assert httpx.post(f"http://{own_address}:{opened.port}{path}", json={}).status_code == 200
    with InferenceServerClient(f"{own_address}:{opened.grpc_port}") as client:
        client.unload_model("digits")
    assert opened.stop() == 0
    log = opened.log.read_text().splitlines()
    [said] = [line for line in log if "(--no-keys)" in line]
    assert "HTTP at 0.0.0.0" in said
    assert [line for line in log if "--cors-origin is *" in line]


def test_a_label_studio_elsewhere_connects_and_is_not_believed(wide, own_address):
    server = wide("--api=label-studio")
    told = {
        "project": "1",
        "schema": "<View/>",
        "hostname": "http://ls",
        "access_token": "t",
    }
    for address in (own_address, "127.0.0.1"):
        answer = httpx.post(f"http://{address}:{server.port}/setup", json=told)
        assert answer.json() == {"model_version": "digits/1"}
    assert server.stop() == 0
    said = "does not fetch files from"
    disbelieved = [line for line in server.log.read_text().splitlines() if said in line]
    assert len(disbelieved) == 1
    assert "--label-studio-url" in disbelieved[0]


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--url-allow-private", "start the server with --url-allow-host 127.0.0.1"),
        ("--url-allow-host=127.0.0.1", "status 403"),
    ],
)
def test_an_address_of_the_server_itself_opens_nothing(serve, demo_repository, flag, told):
    server = serve(demo_repository, "--allow-url", flag)
    # Only programs of this machine may ask for the list.
    address = f"http://127.0.0.1:{server.port}/v1/models"
    assert httpx.get(address).status_code == 200
    answer = httpx.post(server.predict_url("digits"), json={"images": [{"url": address}]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "fetch_refused")
    assert told in answer.text
