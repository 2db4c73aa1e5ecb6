"""What is wrong with the settings of a server is told before any model is loaded."""

import asyncio
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import grpc
import httpx
import pytest
from tests.certificates import make_pair
from tests.serving import free_ports

from fovea_preprocess.errors import InvalidOption, Unavailable
from fovea_server.app import build_app
from fovea_server.listen import bind, bind_all
from fovea_server.serve import Server, make_server
from fovea_server.settings import Settings

PORTS = ("http_port", "grpc_port", "metrics_port")


def server_of(folder: Path, **settings: object) -> tuple[Settings, Server]:
    chosen = Settings(model_repository=folder, **settings)
    return chosen, make_server(build_app(chosen))


@pytest.mark.parametrize("protocol", ["http", "grpc", "metrics"])
@pytest.mark.parametrize("address", ["192.0.2.1", "nobody.invalid", "::zz"])
def test_an_address_that_is_not_ours_is_named(protocol, address):
    free = dict.fromkeys(PORTS, 0)
    settings = Settings(**free, **{f"{protocol}_address": address})
    with pytest.raises(Unavailable, match=f"address of this machine with --{protocol}-address"):
        bind_all(settings)


def test_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"port {port} .*another port with --port"):
            bind("127.0.0.1", port)


def test_all_taken_ports_are_named_at_once():
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        ports = [each.getsockname()[1] for each in taken]
        with pytest.raises(Unavailable) as refused:
            bind_all(Settings(**dict(zip(PORTS, ports, strict=True))))
    for port, name in zip(ports, PORTS, strict=True):
        assert f"port {port} (Address already in use)" in str(refused.value)
        assert f"--{name.replace('_', '-')}" in str(refused.value)


def test_files_of_https_that_do_not_do(tmp_path):
    key, certificate = make_pair(tmp_path, "server")
    other_key, _ = make_pair(tmp_path, "other")
    text = tmp_path / "text"
    text.write_text("no PEM")
    for files, told in (
        ((certificate, None), "HTTPS also needs --http-server-key"),
        ((None, key), "HTTPS also needs --http-server-cert"),
        ((tmp_path / "missing", key), "missing.*No such file"),
        ((text, key), "PEM"),
        ((certificate, text), "PEM"),
        ((certificate, other_key), "KEY_VALUES_MISMATCH"),
    ):
        with pytest.raises(InvalidOption, match=told):
            server_of(tmp_path, http_server_cert=files[0], http_server_key=files[1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"trace_config": ["level=TIMESTAMPS"]},
        {"http_restricted_api": ["nothing:key=value"]},
        {"grpc_restricted_protocol": ["health"]},
        {"grpc_use_ssl": True},
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_understood(tmp_path, wrong):
    with pytest.raises(InvalidOption):
        server_of(tmp_path, **wrong)


def test_https_is_served(tmp_path):
    key, certificate = make_pair(tmp_path, "server")
    settings, server = server_of(
        tmp_path,
        http_port=0,
        allow_grpc=False,
        allow_metrics=False,
        http_server_cert=certificate,
        http_server_key=key,
    )
    trusting = ssl.create_default_context(cafile=certificate)

    async def run() -> httpx.Response:
        (listener,) = bind_all(settings)
        serving = asyncio.create_task(server.serve([listener]))
        async with httpx.AsyncClient(verify=trusting) as client:
            while not server.started:
                await asyncio.sleep(0.01)
            url = f"https://localhost:{listener.getsockname()[1]}/v2/health/live"
            answer = await client.get(url)
        server.should_exit = True
        await serving
        return answer

    assert asyncio.run(run()).json() == {"live": True}


def test_a_server_that_cannot_start_takes_the_others_with_it(tmp_path):
    ports = dict(zip(PORTS, free_ports(3), strict=True))
    _, server = server_of(tmp_path, **ports)
    with (
        socket.create_server(("127.0.0.1", ports["metrics_port"])),
        pytest.raises(Unavailable, match=f"port {ports['metrics_port']}"),
    ):
        server.run()
    with grpc.insecure_channel(f"127.0.0.1:{ports['grpc_port']}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


# A server starts without the packages that only builds, gRPC and traces need.


def test_the_application_loads_no_package_that_it_does_not_need_yet():
    code = (
        "import sys, fovea_server.http.application, fovea_server.serve;"
        "print([m for m in ('onnx', 'onnxslim', 'onnxruntime', 'openvino', 'grpc',"
        " 'opentelemetry.sdk')"
        " if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
