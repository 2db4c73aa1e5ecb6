"""A server and an engine that another TensorRT has built."""

import logging
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.engines.fake_runtime import fake_gpu_machine
from tests.engines.rtx import OLD, rtx_version, tamper
from tests.odd import HEAD, odd_model

from fovea_engines.backends.registry import mismatch
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.heads.head_file import load_head
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import ModelNotReady
from fovea_server.models.model import ServedModel, State
from fovea_server.models.registry import Registry
from fovea_server.settings import Settings

pytestmark = pytest.mark.slow

DEMO = Path(__file__).resolve().parents[3] / "server" / "fovea_server" / "demo" / "digits.onnx"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    repository = tmp_path_factory.mktemp("rebuild") / "repository"
    rtx_version(repository, DEMO, "old")
    build(BuildPlan(DEMO, "other", repository))
    return repository


@pytest.fixture
def repository(built, tmp_path, monkeypatch) -> ModelRepository:
    """With the model "old" of another TensorRT, and "other" that needs none."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = shutil.copytree(built, tmp_path / "repository")
    tamper(root / "old" / "1", backend_version=OLD)
    return ModelRepository(root)


def card(repository: ModelRepository) -> EngineCard:
    return EngineCard.read(repository.folder("old") / "card.json")


@pytest.fixture
def start_in():
    """Start to load a repository; in the end everything is unloaded."""
    registries = []

    def start(root: Path, **settings: object) -> Registry:
        registries.append(Registry(Settings(model_repository=root, **settings)))
        registries[-1].start()
        return registries[-1]

    yield start
    for registry in registries:
        registry.close()


@pytest.fixture
def start(repository, start_in):
    return partial(start_in, repository.root)


def wait(registry: Registry, name: str, state: State) -> ServedModel:
    turn = threading.Event()
    for _ in range(600):
        if registry.reason != "the repository is being read" and (
            registry.get(name).state is state
        ):
            return registry.get(name)
        turn.wait(0.05)
    pytest.fail(f"{name} is {registry.get(name).state}: {registry.reason}")


def test_without_leave_it_is_not_ready_and_says_why(repository, start):
    registry = start()
    old = wait(registry, "old", State.UNAVAILABLE)
    wait(registry, "other", State.READY)
    assert f"was built with tensorrt-rtx {OLD} for compute capability 80" in old.reason
    assert "`fovea serve --rebuild`" in old.reason
    assert registry.reason == f"old: {old.reason}"
    with pytest.raises(ModelNotReady, match=OLD):
        _ = old.scheduler
    assert card(repository).backend_version == OLD


def test_it_is_rebuilt_while_others_are_served(repository, start, caplog, tmp_path):
    caplog.set_level(logging.INFO)
    with fake_gpu_machine() as machine:
        machine.model = shutil.copy(repository.folder("old") / "prepared.onnx", tmp_path)
        with repository.hold("old"):  # so that it cannot be over before it is looked at
            registry = start(rebuild=True)
            wait(registry, "other", State.READY)
            old = registry.get("old")
            assert old.state is State.LOADING
            assert old.reason.startswith("it is being rebuilt: the engine was built with")
        wait(registry, "old", State.READY)
        assert registry.reason == ""
        assert mismatch(card(repository)) is None
        assert old.engine.card == card(repository)
        registry.close()
    [told] = [m for m in caplog.messages if "it is being rebuilt" in m]
    assert (
        f"model old version 1: it is being rebuilt: the engine was built with tensorrt-rtx {OLD}"
        in told
    )
    assert "its last build took" in told


def test_a_head_in_a_file_is_kept(tmp_path, start_in):
    """It is run where code is allowed alone, also by the rebuild."""
    (tmp_path / "odd.py").write_text(HEAD)
    root = tmp_path / "repository"
    source, family = odd_model(DEMO, tmp_path / "odd.onnx"), load_head(tmp_path / "odd.py").family
    folder = tamper(rtx_version(root, source, "odd", family=family), backend_version=OLD)
    with fake_gpu_machine() as machine:
        machine.model = shutil.copy(folder / "prepared.onnx", tmp_path)
        refused = wait(start_in(root, rebuild=True), "odd", State.UNAVAILABLE)
        assert "odd/1/head.py: --allow-code runs it" in refused.reason
        assert EngineCard.read(folder / "card.json").backend_version == OLD
        allowed = start_in(root, rebuild=True, allow_code=True)
        odd = wait(allowed, "odd", State.READY)
        assert odd.engine.head is not None
        assert odd.engine.card.family == family
        allowed.close()
    assert mismatch(EngineCard.read(folder / "card.json")) is None
    assert (folder / "head.py").read_text() == HEAD


def test_a_rebuild_that_fails_says_why(repository, start):
    (repository.folder("old") / "prepared.onnx").unlink()
    registry = start(rebuild=True)
    wait(registry, "other", State.READY)
    old = wait(registry, "old", State.UNAVAILABLE)
    assert "prepared.onnx is not there" in old.reason


def test_a_server_that_stops_does_not_wait_for_a_rebuild(repository, start):
    with repository.hold("old"):
        registry = start(rebuild=True)
        wait(registry, "other", State.READY)
        for model in registry:
            model.cancel()
    old = wait(registry, "old", State.UNAVAILABLE)
    assert "TensorRT gives no plan" in old.reason
    assert card(repository).backend_version == OLD


def test_the_environment_may_allow_it(monkeypatch):
    assert not Settings().rebuild
    monkeypatch.setenv("FOVEA_REBUILD", "1")
    assert Settings().rebuild
