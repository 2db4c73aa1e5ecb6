"""HEAD accepts the keys of an older version, with their permissions, quotas and rates."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serving import RunningServer, start_server
from tests.upgrade.conftest import Fovea
from tests.upgrade.http_requests import list_permissions
from tests.upgrade.recording import DATA, load
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

PLAIN = load("keys/plain.json")
ALLOWED = load("keys/allowed.json")
PREDICT = "/v1/models/digits/predict"
SCENE = (DATA / "images" / "scene.jpg").read_bytes()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded keys, with the recorded use of their quotas in this month."""
    folder = tmp_path_factory.mktemp("keys")
    for path in (DATA / "keys").glob("keys.json*"):
        shutil.copyfile(path, folder / path.name)
    now = f"{datetime.now(UTC):%Y-%m}"
    with sqlite3.connect(folder / "keys.json.used") as used:
        used.execute("UPDATE used SET period = ? WHERE key = 'counted'", [now])
    used.close()
    return folder / "keys.json"


@pytest.fixture(scope="module")
def guarded(file: Path, unpacked: Path) -> Iterator[RunningServer]:
    flags = [f"--keys={file}", "--model-control-mode=explicit"]
    flags += ["--load-model=digits", "--load-model=digits-classify"]
    server = start_server(unpacked, file.parent, flags)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def permissions(guarded: RunningServer) -> dict[str, Any]:
    metrics = f"http://127.0.0.1:{guarded.metrics_port}"
    return list_permissions(guarded.url, metrics, PLAIN, SCENE)


@pytest.mark.parametrize("name", ALLOWED)
def test_permissions(name: str, permissions: dict[str, Any]) -> None:
    assert permissions[name] == ALLOWED[name]


@pytest.mark.parametrize("name", PLAIN)
def test_a_key_describes_itself(name: str, guarded: RunningServer) -> None:
    response = httpx.get(f"{guarded.url}/v1/keys/self", headers={"x-api-key": PLAIN[name]})
    old, new = load("keys/self.json")[name], response.json()
    assert old.keys() == new.keys()
    for each in (old, new):
        each.get("error", {}).pop("message", None)  # it may be reworded
        for momentary in ("images_left", "quota_left", "quota_ends"):
            each.pop(momentary, None)
    assert new == old


@pytest.mark.parametrize(("name", "left"), [("counted", 2), ("slow", 1)])
def test_quotas_and_rates(name: str, left: int, guarded: RunningServer) -> None:
    """A quota of five images a month, three of them used; and a rate of one image an hour."""
    with httpx.Client(base_url=guarded.url, headers={"x-api-key": PLAIN[name]}) as client:
        if name == "counted":
            assert client.get("/v1/keys/self").json()["quota_left"] == left
        responses = [client.post(PREDICT, content=SCENE) for _ in range(left + 1)]
    *answered, rejected = responses
    assert {each.status_code for each in answered} == {200}
    assert rejected.status_code == 429
    assert rejected.json()["error"]["code"] == "rate_limited"
    assert int(rejected.headers["retry-after"]) >= 1


def test_keys_over_grpc(guarded: RunningServer) -> None:
    with grpc.InferenceServerClient(f"127.0.0.1:{guarded.grpc_port}") as client:
        assert client.get_model_metadata("digits", headers={"x-api-key": PLAIN["camera"]})
        plates = {"x-api-key": PLAIN["plates"]}
        for headers, status in ((plates, "PERMISSION_DENIED"), ({}, "UNAUTHENTICATED")):
            with pytest.raises(InferenceServerException) as rejected:
                client.get_model_metadata("digits", headers=headers)
            assert rejected.value.status() == f"StatusCode.{status}"


def test_the_command(fovea: Fovea, file: Path, tmp_path: Path) -> None:
    copy = shutil.copyfile(file, tmp_path / "keys.json")
    code, out, _ = fovea("key", "ls", "--keys", copy, "--json")
    assert code == 0
    used = {"used", "quota_left"}
    listed = [{key: each[key] for key in each.keys() - used} for each in json.loads(out)]
    assert listed == [
        {key: each[key] for key in each.keys() - used} for each in load("listed-keys.json")
    ]
    assert fovea("key", "set", "camera", "--keys", copy, "--rate", "5/s")[0] == 0
    entries = {each["name"]: each for each in json.loads(copy.read_text())["keys"]}
    before = {each["name"]: each for each in json.loads(file.read_text())["keys"]}
    assert entries["camera"] == {**before["camera"], "rate": "5/s"}
    assert {**entries, "camera": None} == {**before, "camera": None}
