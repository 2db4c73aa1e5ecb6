"""Variables that are meant for the server and name no setting are reported at its start."""

import logging
import os
import subprocess
import sys

import pytest

from fovea_server.commands.flags import warn_of_ignored_variables
from fovea_server.commands.serve import read_settings


@pytest.fixture
def warnings(caplog, monkeypatch):
    def of(**variables: str) -> list[str]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with caplog.at_level(logging.WARNING):
            warn_of_ignored_variables()
        return [record.getMessage() for record in caplog.records]

    return of


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("FOVEA_HTP_PORT", "FOVEA_HTTP_PORT"),
        ("FOVEA_MODEL_REPOSITRY", "FOVEA_MODEL_REPOSITORY"),
        ("fovea_log_formt", "FOVEA_LOG_FORMAT"),
        ("FOVEA_PORT", "FOVEA_HTTP_PORT"),
        ("FOVEA_HOST", "FOVEA_HTTP_ADDRESS"),
    ],
)
def test_a_misspelled_one_is_reported_with_what_was_meant(warnings, variable, meant):
    (told,) = warnings(**{variable: "secret"})
    assert told.startswith(f"{variable} is set but names no setting: did you mean {meant}? ")
    assert "secret" not in told


@pytest.mark.parametrize(
    "command", ["health --live --port 9", "inspect --json --repository absent"]
)
def test_every_command_reports_it_on_stderr(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fovea_server.commands.cli", *command.split()],
        env={**os.environ, "FOVEA_MODEL_REPOSITRY": "x"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    told = "FOVEA_MODEL_REPOSITRY is set but names no setting: did you mean FOVEA_MODEL_REPOSITORY?"
    assert done.stderr.startswith(told), done.stderr
    assert "FOVEA" not in done.stdout


def test_one_that_resembles_nothing_is_reported_too(warnings):
    (told,) = warnings(FOVEA_QQQQQ="1")
    assert told.startswith("FOVEA_QQQQQ is set but names no setting: `fovea serve --help`")


def test_settings_and_variables_of_kubernetes_are_not_reported(warnings):
    of_kubernetes = {
        "FOVEA_SERVICE_HOST": "10.0.0.1",
        "FOVEA_SERVICE_PORT": "8000",
        "FOVEA_SERVICE_PORT_HTTP": "8000",
        "FOVEA_PORT": "tcp://10.0.0.1:8000",
        "FOVEA_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "FOVEA_PORT_8000_TCP_PROTO": "tcp",
        "FOVEA_PORT_8000_TCP_PORT": "8000",
        "FOVEA_PORT_8000_TCP_ADDR": "10.0.0.1",
        "FOVEA_CPU_SERVICE_HOST": "10.0.0.1",
        "FOVEA_CPU_PORT": "tcp://10.0.0.1:8000",
    }
    assert warnings(**of_kubernetes, FOVEA_HTTP_PORT="8000", fovea_log_level="info") == []


def test_the_link_to_a_service_named_like_a_port_is_ignored(warnings):
    linked = dict.fromkeys(
        ("FOVEA_HTTP_PORT", "FOVEA_GRPC_PORT", "FOVEA_METRICS_PORT"), "tcp://10.0.0.1:80"
    )
    told = warnings(**linked, FOVEA_GRPC_ADDRESS="127.0.0.2")
    for line, variable in zip(told, sorted(linked), strict=True):
        assert line.startswith(f"{variable} is ignored: Kubernetes set it")
        assert "enableServiceLinks: false" in line
    settings = read_settings(None, {"grpc_port": "9001"})
    assert (settings.http_port, settings.grpc_port, settings.metrics_port) == (8000, 9001, 8002)
    assert settings.grpc_address == "127.0.0.2"
