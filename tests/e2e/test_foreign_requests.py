"""Requests that are not for this server, and control by strangers, are refused on every way in."""

import socket

import grpc
import httpx
import numpy as np
import pytest
from tests.serving import RunningServer
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from fovea_server.settings import Settings

pytestmark = pytest.mark.slow

OURS = (
    *("localhost", "LOCALHOST:1", "vision.localhost", "localhost.", "127.0.0.1:9", "[::1]:80"),
    *("127.0.0.1.", "[::FFFF:127.0.0.1]:1", "[fe80::1%25eth0]", "192.168.1.20:8000", "0.0.0.0", ""),
)
NEAR = ("fovea", "fovea:8000", "fovea.vision.svc", "fovea.vision.svc.cluster.local", "nas.lan")
THEIRS = (
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.com:8000",
    "a@b.c",
    "evil.example@localhost",
    "localhost/.evil.example",
    "localhost?.evil.example",
    "localhost#.evil.example",
    "localhost:80.evil.example",
    "localhost..",
    "2130706433.evil.example",
    "[::1].evil.example",
    "[::1",
    "evil.example\xa0localhost",
)
ROUTES = (
    ("GET", "/v2"),
    ("GET", "/v1/models"),
    ("GET", "/"),
    ("GET", "/docs"),
    ("OPTIONS", "/v1/models"),
    ("POST", "/v1/models/digits/predict"),
    ("POST", "/v2/models/digits/infer"),
)
EVIL = {"Origin": "https://evil.example"}
POSTED = (
    "/v1/models/digits/predict",
    "/v2/models/digits/infer",
    "/v2/models/digits/generate",
    "/v2/repository/index",
    "/v2/repository/models/digits/load",
    "/v2/repository/models/digits/unload",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/digits/trace/setting",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/systemsharedmemory/unregister",
    "/v2/cudasharedmemory/unregister",
    "/v1/vision/detection",
    "/infer/object_detection",
    "/model/clear",
    "/digits/1",
    "/predict",
    "/setup",
    "/webhook",
    "/label-studio/digits/setup",
    "/nowhere",
)
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


def status(url: str, method: str, path: str, host: str) -> int:
    return httpx.request(method, url + path, headers={"Host": host.encode("latin-1")}).status_code


def test_names_that_a_server_of_this_machine_goes_by(demo_server):
    for host in OURS:
        assert status(demo_server.url, "GET", "/v2", host) == 200
        assert status(demo_server.url, "GET", "/v1/models", host) == 200
    for host in (*NEAR, *THEIRS):
        for method, path in ROUTES:
            assert status(demo_server.url, method, path, host) == 403, (host, path)
        metrics = f"http://127.0.0.1:{demo_server.metrics_port}"
        assert status(metrics, "GET", "/metrics", host) == 403
    # HAProxy's checks, and HTTP/1.0 as such, name no host.
    with socket.create_connection(("127.0.0.1", demo_server.port)) as old:
        old.sendall(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
        assert old.recv(100).startswith(b"HTTP/1.1 200")
    # A browser sends a host always; what does not is no page, but `null` equals no name either.
    with socket.create_connection(("127.0.0.1", demo_server.port)) as old:
        old.sendall(b"POST /v2/repository/index HTTP/1.0\r\nOrigin: null\r\n\r\n")
        assert old.recv(100).startswith(b"HTTP/1.1 403")


def test_names_that_a_server_of_a_network_goes_by(wide):
    server = wide("--allowed-host=Vision.example.com")
    metrics = f"http://127.0.0.1:{server.metrics_port}"
    for host in (*OURS, *NEAR, socket.gethostname(), "vision.example.com:8443"):
        assert status(server.url, "GET", "/v2", host) == 200
        assert status(metrics, "GET", "/metrics", host) == 200
    for host in (*THEIRS, "other.example.com", "example.com"):
        assert status(server.url, "GET", "/v2", host) == 403
        assert status(metrics, "GET", "/metrics", host) == 403


def test_every_name_where_the_operator_says(serve, demo_repository):
    server = serve(demo_repository, "--allowed-host=*")
    assert {status(server.url, "GET", "/v2", host) for host in (*OURS, *NEAR, *THEIRS)} == {200}


@pytest.mark.parametrize("name", ["http://a.example", "a.example:80", "", "a..b", "*.example"])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="is no name of a host"):
        Settings(allowed_host=name)


def test_every_post_of_another_page_is_refused(serve, demo_repository):
    apis = ("deepstack=digits", "roboflow", "label-studio")
    server = serve(demo_repository, *(f"--api={api}" for api in apis), "--allow-client-shm")
    with httpx.Client(base_url=server.url) as client:
        for path in POSTED:
            for headers in (EVIL, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}):
                answer = client.post(path, headers=headers, content=b"{}")
                assert answer.status_code == 403, path
                assert "--cors-origin" in answer.text
            for method in ("PUT", "PATCH", "DELETE", "BREW"):
                refused = client.request(method, path, headers=EVIL)
                assert refused.status_code in (403, 400), path
        # A page of this server, also behind a proxy that gives it another name; programs.
        own = f"http://127.0.0.1:{server.port}"
        proxied = {"Origin": "https://vision.example.com", "Sec-Fetch-Site": "same-origin"}
        for headers in ({"Origin": own}, proxied, {}, {"Sec-Fetch-Site": "none"}):
            assert client.post("/v2/repository/index", headers=headers).status_code == 200
        # What only reads, a page may ask for, and cannot read.
        assert client.get("/v2", headers=EVIL).status_code == 200


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
    for path in (
        "/v2",
        "/v1/models",
        "/v1/models/digits",
        "/v2/models/digits/config",
        "/v2/logging",
    ):
        refused = httpx.get(stranger + path)
        assert (refused.status_code, "--keys FILE" in refused.text) == (403, True), path
        assert httpx.get(own + path).status_code == 200
    assert httpx.post(f"{stranger}/v2/repository/index").status_code == 403
    metrics = f":{server.metrics_port}/metrics"
    assert httpx.get(f"http://{own_address}{metrics}").status_code == 403
    assert httpx.get(f"http://127.0.0.1{metrics}").status_code == 200
    tensor = InferInput("images", [1, 3, 320, 320], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 3, 320, 320), np.float32))
    with InferenceServerClient(f"{own_address}:{server.grpc_port}") as client:
        assert client.is_model_ready("digits")
        assert client.infer("digits", [tensor])
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

    opened = wide("--no-keys")
    for path in CHANGES:
        assert httpx.post(f"http://{own_address}:{opened.port}{path}", json={}).status_code == 200
    with InferenceServerClient(f"{own_address}:{opened.grpc_port}") as client:
        client.unload_model("digits")


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
    disbelieved = [line for line in server.log.read_text().splitlines() if "not believed" in line]
    assert len(disbelieved) == 1
    assert "--label-studio-url" in disbelieved[0]


def test_a_proxy_on_this_machine_speaks_for_others_over_grpc_too(serve, demo_repository):
    server = serve(demo_repository, "--model-control-mode=explicit", "--load-model=digits")
    with (
        InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
        pytest.raises(InferenceServerException) as refused,
    ):
        client.unload_model("digits", headers={"x-forwarded-for": "192.0.2.7"})
    assert refused.value.status() == str(grpc.StatusCode.UNAVAILABLE)
