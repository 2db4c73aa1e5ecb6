"""Variables that are meant for the server and name no setting are reported at its start."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import DEMO, ROOT

from fovea_preprocess.errors import InvalidOption
from fovea_server.cli.flags import warn_of_ignored_variables
from fovea_server.cli.serve import read_settings


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
        ("FOVEA_HOSTS", "FOVEA_HTTP_ADDRESS"),
        ("FOVEA_QQQQQ", "`fovea serve --help-all`"),
    ],
)
def test_a_misspelled_one_is_reported_with_what_was_meant(warnings, variable, meant):
    (told,) = warnings(**{variable: "secret"})
    assert told.startswith(variable)
    assert meant in told
    assert "secret" not in told


@pytest.mark.parametrize(
    "command", ["health --live --port 9", "inspect --json --repository absent"]
)
def test_every_command_reports_it_on_stderr(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fovea_server.cli.main", *command.split()],
        env={**os.environ, "FOVEA_MODEL_REPOSITRY": "x"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stderr.startswith("FOVEA_MODEL_REPOSITRY"), done.stderr
    assert "FOVEA" not in done.stdout


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


PAGES = [ROOT / "README.md", ROOT / "docker-compose.yml", *(ROOT / "docs").glob("**/*.md")]


def test_variables_that_pages_name_are_not_reported(warnings):
    named = {
        name for page in PAGES for name in re.findall(r"\bFOVEA_[A-Z_]*[A-Z]\b", page.read_text())
    }
    assert {"FOVEA_BIND", "FOVEA_EXTRAS", "FOVEA_URL"} <= named
    assert warnings(**dict.fromkeys(named, "1")) == []


def test_second_names_work_as_their_flags_do(monkeypatch):
    given = {"HOST": "0.0.0.0", "PORT": "9000", "KEYS": "keys.json", "REPOSITORY": "models"}
    for name, value in given.items():
        monkeypatch.setenv(f"FOVEA_{name}", value)
    settings = read_settings(None, {})
    assert (settings.http_address, settings.http_port) == ("0.0.0.0", 9000)
    assert (settings.grpc_port, settings.metrics_port) == (9001, 9002)
    assert (settings.keys_file, settings.model_repository) == (Path("keys.json"), (Path("models"),))
    monkeypatch.setenv("FOVEA_HTTP_PORT", "9100")
    assert read_settings(None, {}).http_port == 9100
    assert read_settings(None, {"http_port": "9200"}).http_port == 9200
    # A Service that is called fovea.
    monkeypatch.delenv("FOVEA_HTTP_PORT")
    monkeypatch.setenv("FOVEA_PORT", "tcp://10.0.0.1:8000")
    assert read_settings(None, {}).http_port == 8000


def test_a_wrong_second_name_is_named(monkeypatch):
    monkeypatch.setenv("FOVEA_MAX_HELD_MB", "abc")
    with pytest.raises(InvalidOption, match=r"^FOVEA_MAX_HELD_MB is 'abc'"):
        read_settings(None, {})
    with pytest.raises(InvalidOption, match=r"^--max-inflight-mb is 'x'"):
        read_settings(None, {"max_inflight_mb": "x"})


COMMANDS = [
    *("health", "history digits", "promote digits 1", "rollback digits"),
    *(
        "predict digits scene.jpg",
        "bench digits --images .",
        "eval digits --images . --data boxes.json",
    ),
    *("drift digits", "shadow digits 1"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_server_of_every_command_may_be_in_the_environment(
    fovea, command, monkeypatch, tmp_path
):
    (tmp_path / "scene.jpg").write_bytes((DEMO / "scene-1.jpg").read_bytes())
    image = {"id": 1, "file_name": "scene.jpg", "width": 640, "height": 480}
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "area": 81, "iscrowd": 0}
    boxes = {"images": [image], "annotations": [box], "categories": [{"id": 1, "name": "3"}]}
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    monkeypatch.setenv("FOVEA_URL", "http://127.0.0.1:9")
    # No folder is read, whatever the environment says.
    monkeypatch.setenv("FOVEA_MODEL_REPOSITORY", "s3://bucket/models")
    code, _, err = fovea(*command.split())
    assert (code, "127.0.0.1:9" in err) == (1, True), err
    if "images" in command or command.startswith("predict"):
        local = fovea(*command.split(), "--repository", "absent")
        assert (local[0], "127.0.0.1:9" in local[2]) == (2, False), local[2]


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
