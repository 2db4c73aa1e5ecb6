"""The programs of docs/reference/http.md for generated clients compile and work."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.built import build
from tests.docs.pages import ROOT, ported
from tests.generated.test_generated_clients import DEMO, NODE, PACKAGES, run, typescript
from tests.serving import RunningServer, start_server
from tests.system import program

from fovea_engines.build.plan import BuildPlan

pytestmark = [pytest.mark.real, pytest.mark.slow]

PAGE = (ROOT / "docs" / "reference" / "http.md").read_text().split("## Generated clients")[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server whose model has the name that the page has."""
    folder = tmp_path_factory.mktemp("served")
    build(BuildPlan(DEMO / "digits.onnx", "yolov8n", folder / "repository", "onnxruntime"))
    server = start_server(folder / "repository", folder)
    yield server
    assert server.stop() == 0


@pytest.fixture
def folder(server, tmp_path):
    if not PACKAGES.is_dir():
        pytest.skip(f"{PACKAGES} is absent: `make test-real` installs it")
    shutil.copy(DEMO / "scene-1.jpg", tmp_path / "bus.jpg")
    return tmp_path


def block(language: str, server: RunningServer) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return ported(found, {8000: server.port})


def command(begins: str, server: RunningServer) -> list[str]:
    [found] = re.findall(rf"^{begins} (.*)$", PAGE, re.MULTILINE)
    return ported(found, {8000: server.port}).split()


def told(output: str) -> list[str]:
    """The classes that a program printed; each line begins with one."""
    return sorted(line.split()[0] for line in output.splitlines() if line[0].isdigit())


def truth() -> list[str]:
    scenes = json.loads((DEMO / "scenes.json").read_text())
    return sorted(each["class_name"] for each in scenes["scene-1.jpg"])


def test_every_program_is_run() -> None:
    assert re.findall(r"^```(?!sh)(\w+)$", PAGE, re.MULTILINE) == ["go", "ts"]


def test_typescript(server, folder: Path) -> None:
    given = command("npx openapi-typescript", server)
    run(NODE / ".bin" / "openapi-typescript", *given, cwd=folder)
    (folder / "app.ts").write_text(block("ts", server))
    assert told(run(*typescript(folder / "app.ts", folder), cwd=folder)) == truth()


def test_go(server, folder: Path) -> None:
    compiler = program("go", package="golang-go")
    java = program("java", package="default-jdk-headless")
    jar = PACKAGES / "openapi_generator_cli" / "openapi-generator.jar"
    run(java, "-jar", jar, *command("openapi-generator-cli", server), cwd=folder)
    # It would be a module of its own, with tests.
    shutil.rmtree(folder / "fovea" / "test")
    for file in (folder / "fovea").glob("go.*"):
        file.unlink()
    (folder / "main.go").write_text(block("go", server))
    (folder / "go.mod").write_text("module example.com/app\n\ngo 1.19\n")
    run(compiler, "build", "-o", "main", cwd=folder, GOCACHE=str(folder / "cache"))
    assert told(run(folder / "main", cwd=folder)) == truth()
