"""SIGTERM under 16 clients behind a proxy: nothing fails, and the process ends with 0."""

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from tests.conftest import ROOT
from tests.load import Client, Load, over_grpc, over_http
from tests.serving import RunningServer, free_ports, start_server
from tests.system import program

pytestmark = [pytest.mark.real, pytest.mark.slow]


# Two servers behind a real nginx or HAProxy, with the configurations of docker/proxies.


PROXIES = ROOT / "docker" / "proxies"
DRAIN = ("--drain-secs=4", "--log-access=false")

NGINX = """
daemon off;
user root;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/fovea.conf;
}}
"""


class Pair:
    """Two servers of one repository, each of which starts again on its ports."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self._repository, self._folder = repository, folder
        self.servers = [start_server(repository, folder, DRAIN) for _ in range(2)]

    def start_again(self, index: int) -> RunningServer:
        old = self.servers[index]
        assert old.process.poll() == 0
        ports = (old.port, old.grpc_port, old.metrics_port)
        self.servers[index] = start_server(self._repository, self._folder, DRAIN, ports=ports)
        return self.servers[index]

    def placed(self, text: str) -> str:
        """A configuration of docker/proxies, with the addresses of these servers."""
        for host, server in zip(("10.0.0.11", "10.0.0.12"), self.servers, strict=True):
            assert f"{host}:8000" in text
            text = text.replace(f"{host}:8000", f"127.0.0.1:{server.port}")
            text = text.replace(f"{host}:8001", f"127.0.0.1:{server.grpc_port}")
        assert "10.0.0." not in text
        return text


@pytest.fixture
def pair(demo_repository, tmp_path) -> Iterator[Pair]:
    pair = Pair(demo_repository, tmp_path)
    yield pair
    for server in pair.servers:
        server.process.kill()
        server.process.wait()
        log = server.log.read_text()
        assert "Traceback" not in log


@pytest.fixture
def nginx(pair, tmp_path) -> Iterator[int]:
    """The port of HTTP."""
    nginx = program("nginx", package="nginx")
    [port] = free_ports(1)
    text = pair.placed((PROXIES / "nginx.conf").read_text())
    assert "listen 80;" in text
    (tmp_path / "fovea.conf").write_text(text.replace("listen 80;", f"listen 127.0.0.1:{port};"))
    (tmp_path / "nginx.conf").write_text(NGINX.format(folder=tmp_path))
    command = [nginx, "-p", tmp_path, "-c", tmp_path / "nginx.conf", "-e", tmp_path / "start"]
    with _running(command, tmp_path / "nginx.log", port):
        yield port


@pytest.fixture
def haproxy(pair, tmp_path) -> Iterator[tuple[int, int]]:
    """The ports of HTTP and gRPC."""
    haproxy = program("haproxy", package="haproxy")
    http, grpc = free_ports(2)
    text = pair.placed((PROXIES / "haproxy.cfg").read_text())
    for server in pair.servers:
        # The check of gRPC's server asks the port of HTTP.
        own = f"127.0.0.1:{server.grpc_port} proto h2 port "
        assert f"{own}8000" in text
        text = text.replace(f"{own}8000", f"{own}{server.port}")
    for usual, port in (("bind :80\n", http), ("bind :81 ", grpc)):
        assert usual in text
        text = text.replace(usual, f"bind 127.0.0.1:{port}{usual[-1]}")
    (tmp_path / "haproxy.cfg").write_text(text)
    command = [haproxy, "-db", "-f", tmp_path / "haproxy.cfg"]
    with _running(command, tmp_path / "haproxy.log", http, grpc):
        yield http, grpc


@contextmanager
def _running(command: list[object], log: Path, *ports: int) -> Iterator[None]:
    with log.open("w") as stream:
        process = subprocess.Popen(list(map(str, command)), stdout=stream, stderr=stream)
    try:
        for port in ports:
            _wait_for(port, process, log)
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    pytest.fail(log.read_text())


def answers_of(server) -> float:
    """The requests that a server has answered."""
    metrics = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
    found = re.findall(r"^nv_inference_request_success\{.*\} (\S+)", metrics, re.M)
    return sum(map(float, found))


def stop_and_start_each(pair, client: Client) -> None:
    with Load(client) as load:
        load.wait_for_more()
        for index in (0, 1):
            stopped, other = pair.servers[index], pair.servers[1 - index]
            while not (answers_of(stopped) and answers_of(other)):
                load.wait_for_more(1)
            assert stopped.stop() == 0
            load.wait_for_more()
            # A server that starts needs the cores that clients without a pause would take.
            load.pause_s = 0.5
            started = pair.start_again(index)
            while not answers_of(started):
                load.wait_for_more(1)
            load.pause_s = 0
    assert not load.failed, load.failed


def test_behind_nginx(pair, nginx):
    stop_and_start_each(pair, over_http(f"http://127.0.0.1:{nginx}"))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_behind_haproxy(pair, haproxy, tmp_path, protocol):
    http, grpc = haproxy
    clients = {
        "http": over_http(f"http://127.0.0.1:{http}"),
        "grpc": over_grpc(f"127.0.0.1:{grpc}"),
    }
    stop_and_start_each(pair, clients[protocol])
    # It turned away before the port closed: what it saw is the answer of readiness.
    log = (tmp_path / "haproxy.log").read_text()
    for name in ("one", "two"):
        down = f"Server fovea_{protocol}/{name} is DOWN, reason: Layer7 wrong status, code: 400"
        assert down in log
