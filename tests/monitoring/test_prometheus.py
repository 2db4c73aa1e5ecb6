"""A real Prometheus scrapes a real server, answers the dashboard, and fires alerts."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML
from tests.monitoring.conftest import EXPLICIT, control, predict
from tests.monitoring.promql import MONITORING, panel_queries
from tests.serving import free_ports, start_server
from tests.system import program

# The panels that are empty without a GPU, without errors and without an alert.
EMPTY = ("nv_gpu_", "500|504", "ALERTS")


class Prometheus:
    """The program, on a port of its own."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self._url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        assert self.process.poll() is None, "Prometheus has ended"
        try:
            return httpx.get(f"{self._url}/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def query(self, query: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self._url}/api/v1/query", params={"query": query}).json()
        assert answer["status"] == "success", (query, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def firing(self, alert: str) -> list[dict[str, str]]:
        """Labels of the alerts of that name."""
        alerts = httpx.get(f"{self._url}/api/v1/alerts").json()["data"]["alerts"]
        labels = [each["labels"] for each in alerts if each["state"] == "firing"]
        return [each for each in labels if each["alertname"] == alert]


def wait_for(event: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not event():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def prometheus(tmp_path) -> Iterator[Callable[[int], Prometheus]]:
    """Start Prometheus for a server's port, with short intervals; it is ended after the test."""
    started: list[Prometheus] = []

    def start(metrics_port: int) -> Prometheus:
        executable = program("prometheus", package="prometheus")
        yaml = YAML(typ="safe")
        text = (MONITORING / "prometheus" / "prometheus.yml").read_text()
        text = text.replace("15s", "200ms").replace("fovea:8002", f"127.0.0.1:{metrics_port}")
        (tmp_path / "prometheus.yml").write_text(text)
        alerts = yaml.load(MONITORING / "prometheus" / "alerts.yml")
        for rule in alerts["groups"][0]["rules"]:
            rule["for"] = "0s"
        (tmp_path / "alerts.yml").write_text(json.dumps(alerts))
        [port] = free_ports(1)
        with (tmp_path / "prometheus.log").open("w") as log:
            process = subprocess.Popen(
                [
                    executable,
                    f"--config.file={tmp_path}/prometheus.yml",
                    f"--storage.tsdb.path={tmp_path}/data",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stderr=log,
                text=True,
            )
        started.append(Prometheus(process, port))
        wait_for(started[-1].ready)
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def test_it_has_an_answer_for_every_panel(served, prometheus):
    asked = prometheus(served.metrics_port)
    control(served, "unload")
    assert predict(served) == 503
    control(served, "load")
    ready = "fovea_model_ready == 1 and count_over_time(fovea_model_ready[1m]) > 3"
    wait_for(lambda: asked.query(ready))
    empty = {
        title
        for title, query, _ in panel_queries()
        if not asked.query(query) and not any(part in query for part in EMPTY)
    }
    assert empty == set()


def test_alerts_fire_when_a_model_is_unloaded_and_when_the_server_is_killed(
    demo_repository, prometheus, tmp_path
):
    server = start_server(demo_repository, tmp_path, EXPLICIT)
    try:
        asked = prometheus(server.metrics_port)
        wait_for(lambda: asked.query('up{job="fovea"} == 1'))
        wait_for(lambda: asked.query('fovea_model_ready{model="digits"} == 1'))
        assert asked.firing("FoveaModelUnavailable") == asked.firing("FoveaDown") == []
        control(server, "unload")
        wait_for(lambda: asked.firing("FoveaModelUnavailable"))
        [alert] = asked.firing("FoveaModelUnavailable")
        assert alert["model"] == "digits"
        assert asked.query('ALERTS{alertname=~"Fovea.*"}')
        assert asked.firing("FoveaNotReady") == []
        control(server, "load")
        wait_for(lambda: not asked.firing("FoveaModelUnavailable"))
    finally:
        server.process.kill()
        server.process.wait()
    wait_for(lambda: asked.firing("FoveaDown"))
    [alert] = asked.firing("FoveaDown")
    assert alert["instance"] == f"127.0.0.1:{server.metrics_port}"
