"""A model version that cannot be served says why."""

import json
import logging
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.built import build
from tests.conftest import DEMO
from tests.engines.fake_runtime import fake_gpu_machine
from tests.engines.rtx import OLD, rtx_version, tamper
from tests.odd import HEAD, odd_model

from fovea_engines.backends.registry import mismatch
from fovea_engines.build.plan import BuildPlan
from fovea_engines.heads.head_file import load_head
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import ModelNotReady
from fovea_server.dataplane.model_documents import model_document, model_list
from fovea_server.dataplane.v2_documents import model_metadata
from fovea_server.models.config.config import load_config
from fovea_server.models.model import ServedModel, State
from fovea_server.models.registry import Registry
from fovea_server.settings import Settings

pytestmark = pytest.mark.slow

DIGITS = DEMO / "digits.onnx"


@pytest.fixture
def folder(demo_batches, tmp_path) -> Path:
    return shutil.copytree(demo_batches, tmp_path / "repository") / "digits" / "1"


def nobody(name: str, version: int | None) -> ServedModel:
    raise AssertionError("only ensembles ask for others")


def loaded(folder: Path, *, rebuild: bool = False) -> ServedModel:
    config = load_config(folder.parent, "digits")
    model = ServedModel(1, folder, Settings(rebuild=rebuild), config, nobody)
    model.load(rebuild=rebuild)
    return model


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize("bits", [7, 8])
def test_an_engine_that_would_overflow_on_this_cpu_is_not_served(
    folder, bits, rebuild, monkeypatch
):
    monkeypatch.setattr("fovea_engines.repository.card.int8_saturates", lambda: True)
    path = folder / "card.json"
    changed = {"precision": "int8", "weight_bits": bits}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    model = loaded(folder, rebuild=rebuild)
    if bits == 7:
        assert model.state is State.READY
        model.close(1)
        return
    assert model.state is State.UNAVAILABLE
    assert "INT8 weights of 8 bits; this CPU" in model.reason
    assert "build it again with `fovea build`" in model.reason
    assert "--rebuild" not in model.reason


@pytest.mark.parametrize("max_batch", [10**9, 1025, 0, -1])
def test_an_absurd_max_batch_in_the_card_is_named(folder, max_batch):
    path = folder / "card.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_batch": max_batch}))
    model = loaded(folder)
    assert model.state is State.UNAVAILABLE
    assert f"max_batch is {max_batch}, but must be from 1 to 1024" in model.reason


def test_an_absurd_max_batch_size_of_a_plain_model_is_named(tmp_path):
    folder = tmp_path / "digits" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(DIGITS.read_bytes())
    (folder.parent / "config.pbtxt").write_text("max_batch_size: 2000000000")
    model = loaded(folder)
    assert model.state is State.UNAVAILABLE
    assert "correct max_batch_size in config.pbtxt" in model.reason


# A model that is described says what it says when it is loaded.


@pytest.mark.parametrize("repository", ["demo_repository", "demo_versions", "demo_batches"])
def test_documents_are_those_of_a_loaded_model(repository, request, started):
    settings = Settings(model_repository=(request.getfixturevalue(repository),))
    loaded, described = (
        started(Registry(settings, described=described)) for described in (False, True)
    )
    assert model_list(described) == model_list(loaded)
    assert model_document(described, "digits", None) == model_document(loaded, "digits", None)
    one, other = described.get("digits"), loaded.get("digits")
    assert one.config_json == other.config_json
    assert model_metadata(one, ()) == model_metadata(other, ())


def test_a_head_in_a_file_is_described(demo_model, tmp_path, started):
    (tmp_path / "odd.py").write_text(HEAD)
    source, family = odd_model(demo_model, tmp_path / "odd.onnx"), load_head(tmp_path / "odd.py")
    build(BuildPlan(source, "odd", tmp_path / "r", "onnxruntime", family=family.family))
    settings = Settings(model_repository=(tmp_path / "r",), allow_code=True)
    loaded, described = (
        started(Registry(settings, described=described)) for described in (False, True)
    )
    assert model_document(described, "odd", None) == model_document(loaded, "odd", None)
    refused = started(Registry(Settings(model_repository=(tmp_path / "r",)), described=True))
    assert "--allow-code" in refused.get("odd").reason


def test_only_some_models_exist(demo_repository, started):
    settings = Settings(model_repository=(demo_repository,))
    assert started(Registry(settings, only=("other",))).index() == []
    assert [each.name for each in started(Registry(settings, only=("digits",))).index()] == [
        "digits"
    ]


@pytest.fixture
def started():
    """Start registries, and close them at the end."""
    running = []

    def start(registry: Registry) -> Registry:
        registry.start()
        running.append(registry)
        registry._thread.join()
        return registry

    yield start
    for registry in running:
        registry.close()


# A server and an engine that another TensorRT has built.


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    repository = tmp_path_factory.mktemp("rebuild") / "repository"
    rtx_version(repository, DIGITS, "old")
    build(BuildPlan(DIGITS, "other", repository))
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
    source, family = odd_model(DIGITS, tmp_path / "odd.onnx"), load_head(tmp_path / "odd.py").family
    folder = tamper(rtx_version(root, source, "odd", family=family), backend_version=OLD)
    with fake_gpu_machine() as machine:
        machine.model = shutil.copy(folder / "prepared.onnx", tmp_path)
        refused = wait(start_in(root, rebuild=True), "odd", State.UNAVAILABLE)
        assert "odd/1/head.py: run it with --allow-code" in refused.reason
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
    assert "prepared.onnx does not exist" in old.reason


def test_a_server_that_stops_does_not_wait_for_a_rebuild(repository, start):
    with repository.hold("old"):
        registry = start(rebuild=True)
        wait(registry, "other", State.READY)
        for model in registry:
            model.cancel()
    old = wait(registry, "old", State.UNAVAILABLE)
    assert "TensorRT failed to build" in old.reason
    assert card(repository).backend_version == OLD


def test_the_environment_may_allow_it(monkeypatch):
    assert not Settings().rebuild
    monkeypatch.setenv("FOVEA_REBUILD", "1")
    assert Settings().rebuild
