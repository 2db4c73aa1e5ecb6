"""HEAD's lines of the log have the fields that the older version's had."""

import json

import httpx
import pytest
from tests.keyed import until
from tests.serving import RunningServer
from tests.upgrade.conftest import Answers
from tests.upgrade.recorded import load
from tests.upgrade.surface import Table, differences, log_table, unintended
from tritonclient import grpc

pytestmark = pytest.mark.slow

DOCUMENTED = (
    "every line",
    "fovea_server.access",
    "fovea_server.access, gRPC",
    "fovea_server.control",
)
"""The pages name these logs; the names of others are those of modules, which may move."""
INTENDED: dict[str, str] = {}
"""Intended changes: the beginning of the line that the test prints, and the reason."""


@pytest.fixture(scope="module")
def table(server: RunningServer, answers: Answers) -> Table:
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.get_model_metadata("digits")
    httpx.get(f"{server.url}/v1/models", headers={"x-request-id": "the-last"})
    until(lambda: "the-last" in server.log.read_text())
    return log_table(server.log.read_text().rpartition("\n")[0])


def test_the_logs_that_the_pages_name(table: Table) -> None:
    old = load("log.json")
    found = unintended(differences({name: old[name] for name in DOCUMENTED}, table), INTENDED)
    assert not found, found


def test_every_field_is_still_in_some_line(table: Table) -> None:
    before, after = (
        {name for row in each.values() for name in row["names"]}
        for each in (load("log.json"), table)
    )
    assert not unintended(sorted(before - after), INTENDED)


def test_levels_are_the_same(server: RunningServer, answers: Answers) -> None:
    lines = map(json.loads, server.log.read_text().rpartition("\n")[0].splitlines())
    assert {line["level"] for line in lines} <= {"DEBUG", "INFO", "WARNING", "ERROR"}
