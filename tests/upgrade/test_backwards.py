"""An older version serves the files that HEAD wrote: users can go back after an upgrade."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import httpx
import pytest
from tests.conftest import DEMO, ROOT
from tests.serving import start_server
from tests.upgrade.compare import check_same
from tests.upgrade.conftest import Fovea
from tests.upgrade.recording import COMMIT, DATA

pytestmark = pytest.mark.real

OLD_PROGRAM = ("-m", "fovea_server.commands.cli")  # HEAD has no such module
IMAGES = DATA / "images"


@pytest.fixture
def old_environment(tmp_path: Path) -> dict[str, str]:
    """Variables for the Python of the tests to import the older version, from its wheel."""
    command = ["git", "-C", ROOT, "archive", COMMIT]
    archived = subprocess.run(command, capture_output=True, check=False)
    if archived.returncode:
        pytest.skip(f"commit {COMMIT} is not in this clone: git fetch --unshallow")
    source, packages = tmp_path / "source", tmp_path / "packages"
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(source, filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("fovea_serve-*.whl"))) as wheel:
        wheel.extractall(packages)
    # The client is in a folder that a .pth file would add.
    return {**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{packages}/fovea_server/bundled"}


@pytest.fixture
def repository(fovea: Fovea, tmp_path: Path) -> Path:
    """HEAD writes two versions with a history, a pipeline and an index."""
    repository = tmp_path / "repository"
    (repository / "cards").mkdir(parents=True)
    shutil.copy(DATA / "repository" / "cards" / "pipeline.toml", repository / "cards")
    for command in (
        ("build", DEMO / "digits.onnx", "--backend", "onnxruntime"),
        ("build", DEMO / "digits.onnx", "--backend", "openvino"),
        ("build", DEMO / "digits-classify.onnx", "--backend", "onnxruntime"),
        ("build", DEMO / "digits-embed.onnx", "--tokenizer", DEMO / "digits-embed.json"),
        ("build", "--pipeline", "cards", "--images", IMAGES),
        ("index", "digits-embed", IMAGES),
        ("promote", "digits", 2, "--why", "a new runtime"),
        ("promote", "digits", 1, "--why", "a test"),
    ):
        code, _, err = fovea(*command, "--repository", repository)
        assert code == 0, err
    return repository


def test_the_older_version_serves_heads_files(
    old_environment: dict[str, str], repository: Path, fovea: Fovea, tmp_path: Path
) -> None:
    scene, seven = IMAGES / "scene.jpg", IMAGES / "seven.jpg"
    file = tmp_path / "keys.json"
    key = fovea("key", "add", "camera", "--keys", file, "--quota", "100/day")[1].strip()
    predictions = {
        version: json.loads(fovea("predict", repository / "digits" / version, scene, "--json")[1])
        for version in ("1", "2")
    }
    server = start_server(
        repository, tmp_path, [f"--keys={file}"], environment=old_environment, program=OLD_PROGRAM
    )
    try:
        with httpx.Client(base_url=server.url, headers={"x-api-key": key}, timeout=120) as client:
            document = client.get("/v1/models/digits").json()
            assert (document["version"], document["ready"]) == ("1", True)
            assert document["card"]
            for version, prediction in predictions.items():
                path = f"/v1/models/digits/versions/{version}/predict"
                response = client.post(path, content=scene.read_bytes())
                assert response.status_code == httpx.codes.OK, response.text
                prediction["images"][0].pop("file", None)  # only the command has it
                check_same(prediction["images"][0], response.json()["images"][0])
            history = client.get("/v1/models/digits/history").json()
            assert history["current"] == "1"
            assert [each["why"] for each in history["events"]][-2:] == ["a new runtime", "a test"]
            cards = client.post("/v1/models/cards/predict", content=scene.read_bytes()).json()
            assert cards["images"][0]["detections"]
            path = "/v1/models/digits-embed/search?k=1"
            matches = client.post(path, content=seven.read_bytes()).json()
            assert matches["images"][0]["matches"][0]["name"] == "seven.jpg"
            assert client.get("/v1/keys/self").json()["quota"] == 100
            assert httpx.get(f"{server.url}/v1/models").status_code == 401
    finally:
        assert server.stop() == 0, server.log.read_text()
    assert "Traceback" not in server.log.read_text()
