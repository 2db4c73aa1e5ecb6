"""Each limit has its alert: so says the documentation, and a server that is at its limits."""

import re
import resource
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from tests.server.metrics.prometheus import Prometheus, wait_for
from tests.server.metrics.promql import ROOT, rules
from tests.serving import RunningServer, start_server
from tests.stores import environment, remote_packages
from tests.web_store import web_store

from fovea_server.cli.flags import GROUPS
from fovea_server.settings import Settings

pytestmark = pytest.mark.real

PAGE = (ROOT / "docs" / "server.md").read_text()
ALERTS = {rule["alert"] for rule in rules()}


def limits() -> set[str]:
    """The flags of `fovea serve` that say how much, how long or how large."""
    names = list(Settings.model_fields)
    group = names[names.index(GROUPS["Limits"]) : names.index(GROUPS["Images by URL"])]
    sizes = {name for name in names if re.search(r"(^|_)max_|_timeout", name)}
    return {f"--{name.replace('_', '-')}" for name in {*group, *sizes}}


def documented() -> dict[str, set[str]]:
    """Flag in the table of limits -> the alerts of its row."""
    [table] = re.findall(r"^## Limits\n.*?\n\n(\|.*?)\n\n", PAGE, re.M | re.S)
    found = {}
    for row in table.splitlines()[2:]:
        _, limit, _, alerts, _ = row.split("|")
        for flag in re.findall(r"--[\w-]+", limit):
            found[flag] = set(re.findall(r"Fovea\w+", alerts))
    return found


def test_the_documentation_names_every_limit_and_its_alerts():
    rows = documented()
    assert limits() <= rows.keys()
    assert set().union(*rows.values()) <= ALERTS


@contextmanager
def repeating(*asks: Callable[[], object]) -> Iterator[None]:
    """Ask without pause in threads, until the block ends."""
    ended = threading.Event()

    def insist(ask: Callable[[], object]) -> None:
        while not ended.is_set():
            ask()

    threads = [threading.Thread(target=insist, args=(ask,)) for ask in asks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def server(demo_repository, tmp_path_factory) -> Iterator[RunningServer]:
    """A server whose limits are reached soon."""
    flags = ("--max-queue=4", "--max-held-mb=1", "--max-image-mb=0.25", "--log-access=false")
    server = start_server(demo_repository, tmp_path_factory.mktemp("log"), flags)
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture(scope="module")
def asked(server, prometheus) -> Prometheus:
    asked: Prometheus = prometheus(server.metrics_port)
    wait_for(lambda: asked.query("fovea_ready == 1"))
    return asked


def firing(asked: Prometheus, *alerts: str) -> None:
    """Wait until they fire for the model."""
    waiting = set(alerts)

    def all_fire() -> bool:
        for alert in list(waiting):
            if any(one.get("model") == "digits" for one in asked.firing(alert)):
                waiting.remove(alert)
        return not waiting

    wait_for(all_fire)


def test_more_requests_than_the_queue_holds(server, asked, scene):
    def four() -> None:
        httpx.post(server.predict_url("digits"), files=[("f", scene)] * 4, timeout=60)

    with repeating(*[four] * 3):
        firing(asked, "FoveaQueueFilling", "FoveaRefusing")


def test_images_that_are_too_large_and_answers_that_are_too_late(server, asked, scene):
    large, late = bytes(1 << 19), {"x-request-timeout-ms": "1"}

    def send(content: bytes, headers: dict[str, str]) -> None:
        httpx.post(server.predict_url("digits"), content=content, headers=headers, timeout=60)

    with repeating(lambda: send(large, {}), lambda: send(scene, late)):
        firing(asked, "FoveaBadRequests", "FoveaErrors")


def test_bodies_that_arrive_slowly(server, asked):
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Length: 1000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + bytes(900_000))
        wait_for(lambda: asked.firing("FoveaBodiesFilling"))


def test_a_store_that_cannot_be_read(demo_versions, prometheus, tmp_path):
    remote_packages()
    shutil.copytree(demo_versions / "digits", tmp_path / "store" / "digits")
    poll = ("--model-control-mode=poll", "--repository-poll-secs=0.2", "--allow-grpc=false")
    cache = f"--repository-cache={tmp_path / 'cache'}"
    with web_store(tmp_path / "store") as store:
        server = start_server(store.url, tmp_path, (*poll, cache), environment=environment())
        try:
            asked = prometheus(server.metrics_port)
            wait_for(lambda: asked.query("fovea_store_faults == 0"))
            (tmp_path / "store" / "digits").rename(tmp_path / "away")
            wait_for(lambda: asked.firing("FoveaStore"))
            assert asked.firing("FoveaModelUnavailable") == []
            (tmp_path / "away").rename(tmp_path / "store" / "digits")
            wait_for(lambda: not asked.firing("FoveaStore"))
        finally:
            server.process.kill()
            server.process.wait()


# The last one: the server is not to be used after it.
def test_more_connections_than_files(server, asked):
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (128, 128))
    with ExitStack() as stack:
        for _ in range(80):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        wait_for(lambda: asked.firing("FoveaFiles"))
