"""HEAD takes the keys that the older version made, and holds them to what they allowed."""

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
from tests.upgrade.asked import allowed
from tests.upgrade.conftest import Fovea
from tests.upgrade.recorded import DATA, load
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

PLAIN = load("keys/plain.json")
ALLOWED = load("keys/allowed.json")
PREDICT = "/v1/models/digits/predict"
SCENE = (DATA / "images" / "scene.jpg").read_bytes()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded keys, with what of their quotas is used in this month."""
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
def now_allowed(guarded: RunningServer) -> dict[str, Any]:
    metrics = f"http://127.0.0.1:{guarded.metrics_port}"
    return allowed(guarded.url, metrics, PLAIN, SCENE)


@pytest.mark.parametrize("name", ALLOWED)
def test_a_key_may_do_what_it_could(name: str, now_allowed: dict[str, Any]) -> None:
    assert now_allowed[name] == ALLOWED[name]


@pytest.mark.parametrize("name", PLAIN)
def test_a_key_says_what_it_is(name: str, guarded: RunningServer) -> None:
    answer = httpx.get(f"{guarded.url}/v1/keys/self", headers={"x-api-key": PLAIN[name]})
    old, new = load("keys/self.json")[name], answer.json()
    momentary = {"images_left", "quota_left", "quota_ends"}
    assert old.keys() == new.keys()
    for each in (old, new):
        # Sentences may be reworded.
        each.get("error", {}).pop("message", None)
    assert {key: each for key, each in new.items() if key not in momentary} == {
        key: each for key, each in old.items() if key not in momentary
    }


def test_a_quota_counts_on(guarded: RunningServer) -> None:
    """The key has five images a month; the older version took three."""
    headers = {"x-api-key": PLAIN["counted"]}
    with httpx.Client(base_url=guarded.url, headers=headers) as client:
        assert client.get("/v1/keys/self").json()["quota_left"] == 2
        statuses = [client.post(PREDICT, content=SCENE).status_code for _ in range(3)]
        refused = client.post(PREDICT, content=SCENE)
    assert statuses == [200, 200, 429]
    assert refused.json()["error"]["code"] == "rate_limited"
    assert int(refused.headers["retry-after"]) >= 1


def test_a_rate_holds(guarded: RunningServer) -> None:
    headers = {"x-api-key": PLAIN["slow"]}
    with httpx.Client(base_url=guarded.url, headers=headers) as client:
        statuses = [client.post(PREDICT, content=SCENE).status_code for _ in range(2)]
    assert statuses == [200, 429]


def test_keys_over_grpc(guarded: RunningServer) -> None:
    with grpc.InferenceServerClient(f"127.0.0.1:{guarded.grpc_port}") as client:
        headers = {"x-api-key": PLAIN["plates"]}
        assert client.get_model_metadata("digits", headers={"x-api-key": PLAIN["camera"]})
        for given, status in ((headers, "PERMISSION_DENIED"), ({}, "UNAUTHENTICATED")):
            with pytest.raises(InferenceServerException) as refused:
                client.get_model_metadata("digits", headers=given)
            assert refused.value.status() == f"StatusCode.{status}"


def test_the_command_reads_and_changes_the_file(fovea: Fovea, file: Path, tmp_path: Path) -> None:
    copy = shutil.copyfile(file, tmp_path / "keys.json")
    code, told, _ = fovea("key", "ls", "--keys", copy, "--json")
    assert code == 0
    used = {"used", "quota_left"}
    listed = [{key: each[key] for key in each.keys() - used} for each in json.loads(told)]
    assert listed == [
        {key: each[key] for key in each.keys() - used} for each in load("listed-keys.json")
    ]
    assert fovea("key", "set", "camera", "--keys", copy, "--rate", "5/s")[0] == 0
    entries = {each["name"]: each for each in json.loads(copy.read_text())["keys"]}
    before = {each["name"]: each for each in json.loads(file.read_text())["keys"]}
    assert entries["camera"] == {**before["camera"], "rate": "5/s"}
    assert {**entries, "camera": None} == {**before, "camera": None}
