"""Flags of `fovea serve` whose effect is to be seen from outside."""

import shutil
import subprocess

import httpx
import pytest
from tests.forked import forked_fovea
from tests.serving import free_ports

pytestmark = pytest.mark.slow

PORTS = ("--http-port", "--grpc-port", "--metrics-port")


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [*forked_fovea(), "serve", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_log_and_the_name_are_as_told(serve, demo_repository, tmp_path):
    file = tmp_path / "server.log"
    flags = ("--log-info=false", "--log-format=ISO8601", f"--log-file={file}", "--id=camera")
    server = serve(demo_repository, *flags)
    settings = httpx.get(f"{server.url}/v2/logging").json()
    assert settings == {
        "log_file": str(file),
        "log_info": False,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "ISO8601",
    }
    assert httpx.get(f"{server.url}/v2").json()["name"] == "camera"
    assert "INFO" not in file.read_text()


def test_a_model_that_does_not_load_ends_the_server_where_that_is_asked(demo_repository, tmp_path):
    repository = tmp_path / "repository"
    shutil.copytree(demo_repository, repository)
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    done = run(str(repository), "--exit-on-error=true", *(f"{flag}=0" for flag in PORTS))
    assert done.returncode == 1
    assert "broken" in done.stderr.splitlines()[-1]
    assert "--exit-on-error" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("taken", PORTS)
def test_a_port_that_is_taken_is_told_before_anything_is_loaded(
    serve, demo_server, demo_repository, taken
):
    ports = dict(zip(PORTS, map(str, free_ports(3)), strict=True))
    theirs = (demo_server.port, demo_server.grpc_port, demo_server.metrics_port)
    ports[taken] = str(dict(zip(PORTS, theirs, strict=True))[taken])
    done = run(str(demo_repository), *(f"{flag}={port}" for flag, port in ports.items()))
    assert done.returncode == 1
    assert f"port {ports[taken]}" in done.stderr
    assert "loading" not in done.stderr


def test_what_is_not_allowed_does_not_listen(serve, demo_repository):
    server = serve(demo_repository, "--allow-grpc=false", "--allow-metrics=false")
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
    for port in (server.grpc_port, server.metrics_port):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/metrics")


def test_without_uvloop_it_serves_just_as_well(
    serve, demo_repository, scene, tmp_path, monkeypatch
):
    (tmp_path / "uvloop.py").write_text("raise ImportError('it is not for this system')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = serve(demo_repository)
    assert httpx.post(server.predict_url("digits"), content=scene).status_code == 200
    assert server.stop() == 0
