"""SIGTERM under 16 clients behind a proxy: nothing fails, and the process ends with 0."""

import re

import httpx
import pytest
from tests.load import Client, Load, over_grpc, over_http

pytestmark = [pytest.mark.real, pytest.mark.slow]


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
