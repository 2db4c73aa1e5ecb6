"""A real Prometheus, asked over its API, and the files that the project gives it and Grafana."""

import json
import math
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from ruamel.yaml import YAML
from tests.conftest import ROOT
from tests.system import program

MONITORING = ROOT / "docker" / "monitoring"


def rules() -> list[dict[str, Any]]:
    """The alerts."""
    document = YAML(typ="safe").load(MONITORING / "prometheus" / "alerts.yml")
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana has it."""
    text = (MONITORING / "grafana" / "dashboards" / "fovea.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def promtool(*arguments: object, text: str | None = None) -> None:
    tool = program("promtool", package="prometheus")
    command = [tool, *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """Asks the Prometheus at an address."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self._url}/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def query(self, query: str) -> list[dict[str, Any]]:
        """The series of a query, as they are now."""
        found: list[dict[str, Any]] = self._get("query", query=query)["result"]
        return found

    def labels(self, query: str, *, instant: bool) -> list[set[str]]:
        """Names of the labels of each series of a panel that had a number in the last minute."""
        if instant:
            found = [each | {"values": [each["value"]]} for each in self.query(query)]
        else:
            now = time.time()
            minute = {"query": query, "start": now - 60, "end": now, "step": 1}
            found = self._get("query_range", **minute)["result"]
        return [
            set(each["metric"])
            for each in found
            if any(math.isfinite(float(value)) for _, value in each["values"])
        ]

    def firing(self, alert: str) -> list[dict[str, str]]:
        """Labels of the alerts of that name."""
        alerts = self._get("alerts")["alerts"]
        labels = [each["labels"] for each in alerts if each["state"] == "firing"]
        return [each for each in labels if each["alertname"] == alert]

    def targets(self) -> dict[str, str]:
        """Instance -> its health."""
        active = self._get("targets")["activeTargets"]
        return {each["labels"]["instance"]: each["health"] for each in active}

    def rules(self) -> dict[str, str]:
        """Alert -> the health of its rule."""
        groups = self._get("rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def label_values(self, label: str, metric: str) -> list[str]:
        """The values of a label of a metric, as Grafana asks for those of a variable."""
        path = f"{self._url}/api/v1/label/{label}/values"
        found: list[str] = httpx.get(path, params={"match[]": metric}).json()["data"]
        return found

    def _get(self, path: str, **parameters: object) -> dict[str, Any]:
        answer = httpx.get(f"{self._url}/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", (path, parameters, answer)
        data: dict[str, Any] = answer["data"]
        return data


def shorten(folder: Path, interval: str) -> None:
    """Let Prometheus look that often, and let its alerts fire at once, as a test cannot wait.

    Both are numbers in the files of the operator; nothing else is changed.
    """
    config, alerts = folder / "prometheus.yml", folder / "alerts.yml"
    config.write_text(config.read_text().replace("15s", interval))
    alerts.write_text(re.sub(r"(?m)^( +for:) \w+$", r"\1 0s", alerts.read_text()))


def wait_for(event: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not event():
        assert time.monotonic() < until
        time.sleep(0.05)
