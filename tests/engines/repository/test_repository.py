"""The repository on disk: what is seen, and that it is always whole."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.server.registries import adder

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.progress import Progress
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import InvalidOption, NotFound


@pytest.fixture
def repository(tmp_path) -> ModelRepository:
    return ModelRepository(tmp_path / "repository")


def publish(
    repository: ModelRepository, name: str, text: str = "engine", error: BaseException | None = None
) -> None:
    with repository.publish(name) as folder:
        (folder / "model.onnx").write_text(text)
        if error is not None:
            raise error


def test_versions_count_up(repository):
    publish(repository, "a", "first")
    publish(repository, "a", "second")
    assert repository.versions("a") == (1, 2)
    assert repository.latest("a") == 2
    assert repository.next_version("a") == 3
    assert (repository.folder("a") / "model.onnx").read_text() == "second"
    assert (repository.folder("a", 1) / "model.onnx").read_text() == "first"


def test_only_tritons_versions_count(repository):
    for name in ("3", "10", "0", "01", "1a", "latest", "-1", "²"):
        (repository.root / "a" / name).mkdir(parents=True)
    (repository.root / "a" / "7").write_text("a file")
    assert repository.versions("a") == (3, 10)


def test_models_are_folders_with_a_version(repository):
    publish(repository, "b")
    publish(repository, "a")
    (repository.root / "empty").mkdir()
    (repository.root / ".hidden" / "1").mkdir(parents=True)
    (repository.root / "notes.txt").write_text("")
    assert repository.models() == ("a", "b")


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "a/b", "../a", "a\\b", "a b", "ä", "a" * 129]
)
def test_a_name_cannot_lead_elsewhere(repository, name):
    with pytest.raises(InvalidOption), repository.publish(name):
        pytest.fail("a folder was given")
    with pytest.raises(InvalidOption):
        repository.folder(name)
    assert not repository.root.exists()


def test_what_is_not_there_is_not_found(repository):
    with pytest.raises(NotFound):
        repository.models()
    publish(repository, "a")
    for name, version in (("b", None), ("b", 1), ("a", 2), ("a", 0), ("a", -1)):
        with pytest.raises(NotFound):
            repository.folder(name, version)
    publish(repository, "a")
    with pytest.raises(NotFound, match=r"1, 2$"):
        repository.folder("a", 7)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_build_leaves_nothing(repository, error):
    publish(repository, "a")
    before = tree(repository.root)
    with pytest.raises(type(error)):
        publish(repository, "a", "half", error)
    assert tree(repository.root) == before


def test_a_killed_build_is_not_seen_and_is_cleaned_up(repository):
    publish(repository, "a")
    code = (
        "import os, signal, sys, pathlib\n"
        "from fovea_engines.repository.repository import ModelRepository\n"
        "with ModelRepository(pathlib.Path(sys.argv[1])).publish('a') as folder:\n"
        "    (folder / 'model.onnx').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(repository.root)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(repository.root.glob(".a.staging-*"))) == 1
    assert repository.models() == ("a",)
    assert repository.versions("a") == (1,)
    publish(repository, "b")
    assert not list(repository.root.glob(".*"))


def test_a_build_in_progress_is_not_cleaned_up(repository):
    with repository.publish("a") as folder:
        publish(repository, "b")
        publish(repository, "a", "overtook")
        (folder / "model.onnx").write_text("slow")
    assert (repository.folder("a", 1) / "model.onnx").read_text() == "overtook"
    assert (repository.folder("a", 2) / "model.onnx").read_text() == "slow"


def test_another_user_may_read_a_version(repository):
    publish(repository, "a")
    assert repository.folder("a").stat().st_mode & 0o055 == 0o055


def test_a_file_beside_is_written_whole(repository):
    publish(repository, "a")
    repository.write_beside("a", "labels.txt", "cat\n")
    repository.write_beside("a", "labels.txt", "dog\n")
    path = repository.root / "a" / "labels.txt"
    assert path.read_text() == "dog\n"
    assert path.stat().st_mode & 0o044 == 0o044
    assert sorted(p.name for p in path.parent.iterdir()) == ["1", "labels.txt"]


def test_finds_by_content_key(built_repository, card):
    repository = ModelRepository(built_repository)
    assert repository.find("tiny", card.content_key) == 1
    assert repository.find("tiny", "0" * 64) is None
    assert repository.find("other", card.content_key) is None


def test_of_two_builds_of_the_same_at_once_the_first_stays(tiny_model, tmp_path):
    both_began = threading.Barrier(2)

    class Together(Progress):
        @contextmanager
        def phase(self, name: str) -> Iterator[None]:
            if name == "compile":  # here each has looked for the other's version, and found none
                both_began.wait(60)
            with super().phase(name):
                yield

    plan = BuildPlan(tiny_model, "tiny", tmp_path)
    with ThreadPoolExecutor(2) as pool:
        cards = list(pool.map(lambda _: build(plan, Together()), range(2)))
    assert ModelRepository(tmp_path).versions("tiny") == (1,)
    assert cards == [EngineCard.read(tmp_path / "tiny" / "1" / "card.json")] * 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tiny"]


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_folder_that_is_no_model_is_none(tmp_path):
    adder(tmp_path, "plus")
    (tmp_path / "clone" / "src").mkdir(parents=True)
    (tmp_path / "clone" / "src" / "model.py").write_text("")
    (tmp_path / "a b" / "1").mkdir(parents=True)
    (tmp_path / "a b" / "1" / "notes.txt").write_text("")
    repository = ModelRepository(tmp_path)
    assert (repository.models(), repository.versionless(), repository.misnamed()) == (
        ("plus",),
        (),
        (),
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_lost_and_found_keeps_no_other_user_from_its_models(tmp_path):
    """Every volume of ext4 has that folder, which root alone may read."""
    adder(tmp_path / "models", "plus")
    (tmp_path / "models" / "lost+found").mkdir(mode=0o700)
    for path in (tmp_path, *tmp_path.parents):
        if path == Path(tempfile.gettempdir()):
            break
        path.chmod(0o755)
    code = (
        "import os, sys; from fovea_engines.repository.repository import ModelRepository;"
        "from pathlib import Path; os.setuid(65534); r = ModelRepository(Path(sys.argv[1]));"
        "print(r.models(), r.versionless(), r.misnamed())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "models")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "('plus',) () ()"
