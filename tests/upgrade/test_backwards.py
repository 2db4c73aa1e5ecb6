"""The older version serves what HEAD wrote: who upgrades can go back."""

import json
import subprocess
import sys
import venv
import zipfile
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from tests.conftest import DEMO, ROOT
from tests.keyed import until
from tests.serving import reserved_ports
from tests.upgrade.conftest import Fovea
from tests.upgrade.recorded import COMMIT, DATA
from tests.upgrade.same import differences

pytestmark = pytest.mark.real

DEPENDENCIES = Path(pytest.__file__).parents[1]
OLD_PROGRAM = ("-m", "fovea_server.commands.cli")
SCENE = DATA / "images" / "scene.jpg"


def git(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(ROOT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the older version, and with the dependencies of the tests.

    To install a wheel is to unpack it. Files .pth among the dependencies have no effect from there.
    """
    folder = tmp_path_factory.mktemp("older")
    if git("cat-file", "-e", f"{COMMIT}^{{commit}}").returncode:
        pytest.skip(f"commit {COMMIT} is not in this clone: git fetch --unshallow")
    made = git("worktree", "add", "--detach", folder / "source", COMMIT)
    if made.returncode:
        pytest.skip(f"no worktree can be made: {made.stderr.strip()}")
    try:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=folder / "source", check=True, capture_output=True)
    finally:
        git("worktree", "remove", "--force", folder / "source")
    venv.create(folder / "venv", with_pip=False)
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")
    [wheel] = folder.glob("fovea_serve-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    python = folder / "venv" / "bin" / "python"
    place = subprocess.run(
        [python, "-c", "import fovea_server; print(fovea_server.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(place.stdout.strip()).is_relative_to(packages)
    return python


@pytest.fixture
def written(fovea: Fovea, tmp_path: Path) -> Path:
    """HEAD writes two versions with a history, a pipeline, an index, keys."""
    repository = tmp_path / "repository"
    place = ("--repository", repository)
    for backend in ("onnxruntime", "openvino"):
        code, _, err = fovea("build", DEMO / "digits.onnx", *place, "--backend", backend)
        assert code == 0, err
    for name in ("classify", "embed"):
        source = DEMO / f"digits-{name}.onnx"
        words = ("--tokenizer", DEMO / "digits-embed.json") if name == "embed" else ()
        assert fovea("build", source, *place, "--backend", "onnxruntime", *words)[0] == 0
    (repository / "cards").mkdir()
    recipe = (DATA / "repository" / "cards" / "pipeline.toml").read_bytes()
    (repository / "cards" / "pipeline.toml").write_bytes(recipe)
    images = ("--images", DATA / "images")
    assert fovea("build", "--pipeline", "cards", *images, *place)[0] == 0
    assert fovea("index", "digits-embed", DATA / "images", *place)[0] == 0
    assert fovea("promote", "digits", 2, "--why", "a new runtime", *place)[0] == 0
    assert fovea("promote", "digits", 1, "--why", "a test", *place)[0] == 0
    return repository


def test_the_older_version_serves_what_head_wrote(
    old_python: Path, written: Path, fovea: Fovea, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    key = fovea("key", "add", "camera", "--keys", file, "--quota", "100/day")[1].strip()
    own = {
        version: json.loads(fovea("predict", written / "digits" / version, SCENE, "--json")[1])
        for version in ("1", "2")
    }
    with reserved_ports(3) as ports:
        flags = [
            f"{flag}={port}"
            for flag, port in zip(
                ("--http-port", "--grpc-port", "--metrics-port"), ports, strict=True
            )
        ]
        log = tmp_path / "older.log"
        command = [old_python, *OLD_PROGRAM, "serve", written, f"--keys={file}", *flags]
        with log.open("w") as stream:
            process = subprocess.Popen([str(each) for each in command], stderr=stream)
    url = f"http://127.0.0.1:{ports[0]}"

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        with suppress(httpx.TransportError):
            return httpx.get(f"{url}/v2/health/ready").status_code == 200
        return False

    try:
        until(ready, 180)
        with httpx.Client(base_url=url, headers={"x-api-key": key}, timeout=120) as client:
            document = client.get("/v1/models/digits").json()
            assert (document["version"], document["ready"]) == ("1", True)
            assert document["card"]
            body = SCENE.read_bytes()
            for version, before in own.items():
                path = f"/v1/models/digits/versions/{version}/predict"
                after = client.post(path, content=body)
                assert after.status_code == httpx.codes.OK, after.text
                before["images"][0].pop("file", None)  # it is of the command alone
                found = differences(before["images"][0], after.json()["images"][0])
                assert not found, "\n".join(found)
            history = client.get("/v1/models/digits/history").json()
            assert history["current"] == "1"
            told = [each["why"] for each in history["events"]]
            assert told[-2:] == ["a new runtime", "a test"]
            cards = client.post("/v1/models/cards/predict", content=body)
            assert cards.json()["images"][0]["detections"]
            seven = (DATA / "images" / "seven.jpg").read_bytes()
            matches = client.post("/v1/models/digits-embed/search?k=1", content=seven).json()
            assert matches["images"][0]["matches"][0]["name"] == "seven.jpg"
            assert client.get("/v1/keys/self").json()["quota"] == 100
            assert httpx.get(f"{url}/v1/models").status_code == 401
    finally:
        process.terminate()
        assert process.wait(180) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
