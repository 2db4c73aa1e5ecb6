"""A real Prometheus, asked over its HTTP API."""

import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx


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

    def values(self, query: str, *, instant: bool) -> list[float]:
        """The numbers of a panel of the last minute, without those that are none."""
        if instant:
            pairs = [series["value"] for series in self.query(query)]
        else:
            now = time.time()
            asked = {"query": query, "start": now - 60, "end": now, "step": 1}
            found = self._get("query_range", **asked)["result"]
            pairs = [pair for series in found for pair in series["values"]]
        return [value for value in (float(text) for _, text in pairs) if math.isfinite(value)]

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
