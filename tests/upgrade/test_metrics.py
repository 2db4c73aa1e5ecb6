"""HEAD has every metric of the older version, with its type and labels."""

import httpx
import pytest
from tests.serving import RunningServer
from tests.upgrade.conftest import Answers
from tests.upgrade.recorded import load
from tests.upgrade.surface import differences, metrics_table, unintended

pytestmark = pytest.mark.slow

INTENDED: dict[str, str] = {}
"""Intended changes: the beginning of the line that the test prints, and the reason."""


def test_metrics(server: RunningServer, answers: Answers) -> None:
    new = metrics_table(httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text)
    found = unintended(differences(load("metrics.json"), new), INTENDED)
    assert not found, found
