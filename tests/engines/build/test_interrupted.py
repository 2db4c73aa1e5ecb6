"""Builds that are killed or find the disk full: what was served goes on being served."""

import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from tests.drawn import draw
from tests.engines.sabotage import plant_outlier
from tests.forked import CAN_FORK, forked_fovea

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.repository.repository import ModelRepository

pytestmark = pytest.mark.slow


PHASES = ["load", "calibrate:5", "sensitivity:2", "compile", "agreement", "accuracy"]
# In the order they are written; the last is the folder of the version itself.
FILES = ["model.onnx", "worst.jpg", "card.md", "calibration.json", "card.json", "2"]


@pytest.fixture(scope="module")
def model(deep_detector, tmp_path_factory) -> Path:
    """One whose agreement is so poor that the build searches for the block to blame."""
    spoilt = onnx.load(deep_detector)
    plant_outlier(spoilt, 1)
    path = tmp_path_factory.mktemp("interrupted") / "d.onnx"
    onnx.save(spoilt, path)
    return path


@pytest.fixture
def repository(deep_detector, labels, tmp_path) -> Path:
    """With version 1, in FP32."""
    # Where the labels are made, that very version is built.
    shutil.copytree(labels.parent / "d", tmp_path / "r" / "d")
    return tmp_path / "r"


@pytest.fixture
def fovea_build(model, repository, images, labels):
    """Run `fovea build --precision int8` up to a place: its exit code and stderr."""
    fixed = [
        "build", model, "--repository", repository, "--precision", "int8",
        "--calibration", images, "--images", images, "--data", labels, "--max-drop", "0.5",
    ]  # fmt: skip
    script = Path(__file__).with_name("dying_build.py")

    def run(action: str, place: str, backend="onnxruntime", **options) -> tuple[int, str]:
        # Limits reach no fork.
        forked = CAN_FORK and not options
        program = [*(forked_fovea() if forked else [sys.executable]), script]
        done = subprocess.run(
            [*program, action, place, *fixed, "--backend", backend],
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        return done.returncode, done.stderr

    return run


def check_served(repository: Path, versions: tuple[int, ...]) -> None:
    """Every version is whole and finds what it found."""
    models = ModelRepository(repository)
    assert models.models() == ("d",)
    assert models.versions("d") == versions
    for version in versions:
        with Engine.open(models.folder("d", version)) as engine:
            assert len(engine.detect(draw(64, 80, 0)))


def check_next_build(model: Path, repository: Path, images: Path, version: int) -> None:
    """It works, and leaves nothing of the one before."""
    card = build(
        BuildPlan(
            model, "d", repository, "onnxruntime", precision="int8", calibration=images,
            keep_float=("layer.2",),
        )
    )  # fmt: skip
    assert card.precision == "int8"
    check_served(repository, tuple(range(1, version + 1)))
    assert [path.name for path in repository.iterdir()] == ["d"]
    hidden = [path.name for path in (repository / "d").iterdir() if path.name.startswith(".")]
    assert hidden == []


@pytest.mark.parametrize("place", PHASES + FILES)
def test_a_killed_build_leaves_what_was_served(fovea_build, model, repository, images, place):
    code, err = fovea_build("kill", place)
    assert code == -signal.SIGKILL, err
    check_served(repository, (1,))
    check_next_build(model, repository, images, 2)


def test_killed_behind_the_version_the_version_is_whole(fovea_build, model, repository, images):
    """The config is about to be replaced: the old one stays, and fits both."""
    (repository / "d" / "config.pbtxt").unlink()
    code, err = fovea_build("kill", "config.pbtxt")
    assert code == -signal.SIGKILL, err
    check_served(repository, (1, 2))
    check_next_build(model, repository, images, 3)


@pytest.mark.parametrize("place", ["sensitivity:2", "model.onnx", "2"])
def test_a_full_disk_is_a_sentence(fovea_build, model, repository, images, place):
    code, err = fovea_build("full", place)
    assert code == 1, err
    told = r"\((No space left on device|the disk is full: .* needed)\): nothing was published"
    assert re.search(told, err.splitlines()[-1]), err
    check_served(repository, (1,))
    assert [path.name for path in repository.iterdir()] == ["d"]
    check_next_build(model, repository, images, 2)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_file_that_stays_too_short_is_an_error(fovea_build, repository, backend):
    """A limit on file size stands in for a full disk: the write itself fails."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    before = sorted(path for path in repository.rglob("*"))
    code, err = fovea_build("full", "nowhere", backend, preexec_fn=limit)
    assert code == 1, err
    told = r"\(the file exceeds the limit .*ulimit.*, .* needed\): nothing was published"
    assert re.search(told, err.splitlines()[-1]), err
    assert sorted(path for path in repository.rglob("*")) == before


PAGE = 4096


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_a_full_disk_is_named_with_what_is_free_and_needed(
    fovea, tiny_model, tmp_path, small_disk, backend
):
    build = ("build", tiny_model, "--backend", backend, "--repository")
    assert fovea(*build, tmp_path / "r")[0] == 0
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "r" / "tiny" / "1").iterdir()}
    engine = sum(-(-size // PAGE) for name, size in sizes.items() if name.startswith("model."))
    # Pages that are free -> files of which one does not fit.
    for pages, files in ((0, "model"), (engine - 1, "model"), (engine, r"(card|worst)")):
        (small_disk / "fill").write_bytes(bytes(2**20 - pages * PAGE))
        code, _, err = fovea(*build, small_disk / "r")
        assert code == 1
        told = rf"/r/\.tiny\.staging-\w+/{files}\.\w+ cannot be read or written "
        told += r"\(the disk is full: 0\.\d\d MB were free, 0\.\d\d MB are needed\)"
        assert re.search(told + ": nothing was published", err.splitlines()[-1]), err
        assert ModelRepository(small_disk / "r").models() == ()
        # Nothing is left that fills it.
        assert not list((small_disk / "r").iterdir())
