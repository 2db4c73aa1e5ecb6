"""An engine that does not fit what is here is built again, in its place."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.drawn import draw
from tests.engines.fake_runtime import HERE, Gpu, fake_gpu_machine, gpu_is_here
from tests.engines.rtx import OLD, rtx_version, tamper
from tests.engines.tiny import tiny_detector, tiny_network

from fovea_engines.backends.registry import mismatch
from fovea_engines.backends.tensorrt.backend import CACHE_FILE
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.rebuild import likeness, rebuild
from fovea_engines.engine import Engine
from fovea_engines.progress import Progress
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.files import file_sha256
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import (
    BackendUnavailable,
    BuildError,
    Disagreement,
    InvalidModel,
    InvalidOption,
)

pytestmark = pytest.mark.real

KEPT = "prepared.onnx"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Build times of another folder than the user's."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def built(tiny_model, tmp_path_factory) -> Path:
    repository = tmp_path_factory.mktemp("rebuild") / "repository"
    return rtx_version(repository, tiny_model, "tiny", precision="fp16")


@pytest.fixture
def folder(built, tmp_path) -> Path:
    """A version that another release has built."""
    return tamper(
        shutil.copytree(built, tmp_path / "repository" / "tiny" / "1"), backend_version=OLD
    )


def read(folder: Path) -> EngineCard:
    return EngineCard.read(folder / "card.json")


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_alone(folder: Path) -> None:
    """Nothing is left beside it."""
    assert [path.name for path in folder.parents[1].iterdir()] == ["tiny"]
    assert not list(folder.parent.glob(".*"))


class Builds(Progress):
    """Counts the builds that begin."""

    builds = 0

    def phase(self, name: str):
        Builds.builds += name == "compile"
        return super().phase(name)


def test_it_is_built_again_in_its_place(folder):
    before, files = read(folder), bytes_of(folder)
    (folder / CACHE_FILE).write_bytes(b"kernels of the old one")
    card = rebuild(folder)
    assert card == read(folder)
    assert mismatch(card) is None
    assert card.files.keys() == before.files.keys()
    for name, digest in card.files.items():
        assert file_sha256(folder / name) == digest
    assert (folder / KEPT).read_bytes() == files[KEPT]
    assert (card.agreement, card.labels) == (before.agreement, before.labels)
    assert (card.builder, card.judge) == (before.builder, "onnxruntime")
    assert card.build_seconds.keys() == {"compile", "agreement"}
    assert bytes_of(folder).keys() == files.keys()
    report = (folder / "card.md").read_bytes().removeprefix(files["card.md"]).decode()
    assert f"with tensorrt-rtx {card.backend_version}, from {KEPT}" in report
    check_alone(folder)


def test_a_gpu_is_added_to_those_it_was_built_for(built, folder, tmp_path):
    tamper(folder, backend_version=read(built).backend_version)
    with fake_gpu_machine() as machine:
        machine.model = shutil.copy(folder / KEPT, tmp_path)
        assert "compute capability 80" in mismatch(read(folder))
        card = rebuild(folder)
        assert mismatch(card) is None
    assert card.builder.capabilities == ("80", "89")
    assert read(folder).builder == card.builder
    assert card.files["model.plan"] != read(built).files["model.plan"]
    with gpu_is_here(Gpu("NVIDIA A100", "80")):
        assert mismatch(card) is None


def test_where_there_is_a_gpu_the_engine_itself_is_checked(folder, tmp_path):
    with fake_gpu_machine() as machine:
        machine.model = shutil.copy(folder / KEPT, tmp_path)
        card = rebuild(folder)
        assert (card.device, card.judge) == (HERE.name, None)
        assert len(machine.engines) == 1
        assert CACHE_FILE not in card.files
        with Engine.open(folder) as engine:
            assert len(engine.detect(draw(64, 80, 0)))


@pytest.mark.parametrize("network", [False, True])
def test_an_engine_that_computes_something_else_is_not_served(tmp_path, network):
    model = tiny_network if network else tiny_detector
    repository = tmp_path / "repository"
    folder = rtx_version(repository, model(tmp_path / "a.onnx", seed=0), "tiny")
    other = rtx_version(tmp_path / "b", model(tmp_path / "b.onnx", seed=2), "other")
    before = bytes_of(tamper(folder, backend_version=OLD))
    with fake_gpu_machine() as machine:
        machine.model = other / KEPT
        with pytest.raises(Disagreement):
            rebuild(folder)
    assert bytes_of(folder) == before
    check_alone(folder)


def test_another_model_for_the_same_classes_is_seen(shared, tmp_path):
    engines = []
    for name in ("yolov8n", "yolov5n"):
        folder = tmp_path / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.onnx").symlink_to(shared / "models" / f"{name}.onnx")
        engines.append(Engine.open(folder))
    with engines[0] as one, engines[1] as other:
        assert likeness(one, one) == 1
        assert likeness(one, other) < 0.5


def test_of_several_at_once_one_builds(folder):
    Builds.builds = 0
    with ThreadPoolExecutor(3) as pool:
        cards = list(pool.map(lambda _: rebuild(folder, Builds()), range(3)))
    assert Builds.builds == 1
    assert cards == [read(folder)] * 3
    check_alone(folder)


def test_what_fits_is_left_alone(built, tmp_path):
    folder = shutil.copytree(built, tmp_path / "repository" / "tiny" / "1")
    before = bytes_of(folder)
    assert rebuild(folder) == read(folder)
    assert bytes_of(folder) == before


@pytest.mark.parametrize("reason", ["another ONNX", "GPU", "stopped", "no folder", "no swap"])
def test_what_cannot_be_rebuilt_stays_as_it_was(folder, monkeypatch, reason):
    progress, here = Progress(), None

    def refuse(*_, **__):
        """Fail as a read-only mount does: root, who runs tests, may write anything else."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))

    match reason:
        case "another ONNX":
            error, says = InvalidModel, r"prepared\.onnx"
            with (folder / KEPT).open("ab") as kept:
                kept.write(b"\0")
        case "GPU":
            error, says, here = InvalidOption, "'90'", Gpu("NVIDIA H200", "90")
        case "stopped":
            error, says = BuildError, "TensorRT failed to build"
            progress.cancelled = True
        case "no folder":
            error, says = BackendUnavailable, "Read-only file system"
            monkeypatch.setattr("tempfile.mkdtemp", refuse)
        case "no swap":
            error, says = BackendUnavailable, "Read-only file system"
            monkeypatch.setattr("fovea_engines.repository.repository.swap", refuse)
    before = bytes_of(folder)
    with (
        gpu_is_here(here) if here else nullcontext(),
        pytest.raises(error, match=says),
    ):
        rebuild(folder, progress)
    assert bytes_of(folder) == before
    check_alone(folder)


KILLED = """
import os, signal, sys
from pathlib import Path
from fovea_engines.repository import repository
def swap(*folders, done=repository.swap):
    if sys.argv[2] == "after":
        done(*folders)
    os.kill(os.getpid(), signal.SIGKILL)
repository.swap = swap
from fovea_engines.build.rebuild import rebuild
rebuild(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_as_they_change_places_one_of_both_is_there(folder, tiny_model, moment):
    before = bytes_of(folder)
    killed = subprocess.run([sys.executable, "-c", KILLED, folder, moment], check=False)
    assert killed.returncode == -signal.SIGKILL
    card = read(folder)
    assert (mismatch(card) is None) == (moment == "after")
    assert (bytes_of(folder) == before) == (moment == "before")
    for name, digest in card.files.items():
        assert file_sha256(folder / name) == digest
    repository = ModelRepository(folder.parents[1])
    assert repository.models() == ("tiny",)
    assert repository.versions("tiny") == (1,)
    build(BuildPlan(tiny_model, "other", repository.root, "onnxruntime"))
    assert sorted(path.name for path in repository.root.iterdir()) == ["other", "tiny"]
