"""A repository with a detector of digits, networks for crops, and pipelines of them."""

import shutil
from pathlib import Path

import pytest
from tests.built import build
from tests.e2e.results import AS_IT_IS, MODELS
from tests.serving import start_server

from fovea_engines.build.plan import BuildPlan

DEMO = Path(__file__).resolve().parents[3] / "server" / "fovea_server" / "demo"
PIPELINE = """
[[stages]]
model = "digits"

[[stages]]
model = "attributes"
padding = 0.1

[[stages]]
name = "digit"
model = "classes"
classes = ["1", "2", "3", "4", "5", "6", "7"]
top_k = 2

[[stages]]
model = "reading"
if = 0.5

[[stages]]
model = "embedding"
from = "attributes"
"""


def write_pipeline(repository: Path, name: str, text: str) -> None:
    """Write a pipeline as an editor does that replaces the file."""
    (repository / name).mkdir(exist_ok=True)
    new = repository / name / ".new"
    new.write_text(text)
    new.replace(repository / name / "pipeline.toml")


@pytest.fixture(scope="session")
def parts(demo_repository, tmp_path_factory):
    """The models without a pipeline; not to be written to."""
    folder = tmp_path_factory.mktemp("parts")
    repository = folder / "repository"
    shutil.copytree(demo_repository, repository)
    for name in ("attributes", "reading", "embedding"):
        source = MODELS[name].write(folder / f"{name}.onnx")
        plan = {"preprocess": AS_IT_IS} | MODELS[name].given
        build(BuildPlan(source, name, repository, "onnxruntime", **plan))
    build(BuildPlan(DEMO / "digits-classify.onnx", "classes", repository, "onnxruntime"))
    return repository


@pytest.fixture
def repository(parts, tmp_path):
    """A repository of the test's own, with the pipeline `plates`."""
    shutil.copytree(parts, tmp_path / "repository")
    write_pipeline(tmp_path / "repository", "plates", PIPELINE)
    return tmp_path / "repository"


@pytest.fixture(scope="session")
def server(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipelines")
    shutil.copytree(parts, folder / "repository")
    write_pipeline(folder / "repository", "plates", PIPELINE)
    running = start_server(folder / "repository", folder)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def scene() -> bytes:
    return (DEMO / "scene-1.jpg").read_bytes()


@pytest.fixture(scope="session")
def crowd() -> bytes:
    """A scene with two digits or more."""
    return (DEMO / "scene-2.jpg").read_bytes()
