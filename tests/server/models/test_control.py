"""Models that requests load and unload."""

import asyncio
import json
import threading

import numpy as np
import pytest
from tests.server.registries import ADDER_CONFIG, adder, answer, copied, serving

from fovea_engines.repository.config_pbtxt import CONFIG_FILE
from fovea_preprocess.errors import InvalidRequest, LoadFailed, ModelNotReady, NotFound, Unavailable
from fovea_server.models.model import State
from fovea_server.models.registry import Registry
from fovea_server.models.slot import IndexEntry, ModelSlot
from fovea_server.models.source import Source
from fovea_server.tensors.messages import InferRequest, InferResponse, InputTensor

EXPLICIT = {"model_control_mode": "explicit"}
NOT_THERE = "failed to load 'plus', failed to poll from model repository"


@pytest.fixture
def repository(tmp_path):
    adder(tmp_path, "plus", add=5, config=ADDER_CONFIG)
    adder(tmp_path, "other", config=ADDER_CONFIG)
    return tmp_path


def test_only_what_is_named_is_loaded_at_start(repository):
    with serving(repository, **EXPLICIT, load_model=("plus",)) as registry:
        assert registry.ready
        assert registry.index() == [IndexEntry("other"), IndexEntry("plus", "1", "READY")]
    with serving(repository, **EXPLICIT, load_model=("*",)) as registry:
        assert len(registry.index(ready=True)) == 2
    with serving(repository, **EXPLICIT) as registry:
        assert registry.ready
        assert registry.index(ready=True) == []
    with serving(repository, **EXPLICIT, load_model=("nope",)) as registry:
        assert registry.reason.startswith("nope: the folder nope does not exist")


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_in_other_modes_requests_load_nothing(repository, mode, caplog):
    with serving(repository, model_control_mode=mode) as registry:
        for ask in (registry.load, registry.unload):
            with pytest.raises(Unavailable, match="explicit model load / unload is not allowed"):
                ask("plus")
            assert "--model-control-mode=explicit" in caplog.records[-1].message
            assert mode in caplog.records[-1].message


def test_a_model_is_loaded_and_unloaded(repository):
    with serving(repository, **EXPLICIT) as registry:
        registry.load("plus")
        model = registry.find("plus")
        assert answer(model) == 5
        registry.load("plus")
        assert registry.find("plus") is model, "nothing has changed"
        registry.unload("plus")
        assert registry.index()[1] == IndexEntry("plus", "1", "UNAVAILABLE", "unloaded")
        with pytest.raises(NotFound, match="'plus' has no available versions"):
            registry.find("plus")
        with pytest.raises(ModelNotReady, match="version 1 is not at ready state"):
            registry.find("plus", 1)
        assert list(registry) == []
        assert registry.ready
        registry.unload("plus")
        registry.unload("nope")
        registry.load("plus")
        assert answer(registry.find("plus")) == 5


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("nope", LoadFailed, "failed to load 'nope', failed to poll from model repository"),
        ("a b", LoadFailed, "failed to load 'a b', failed to poll from model repository"),
        ("", InvalidRequest, "model name must not be empty"),
        ("\0", InvalidRequest, r"invalid model name '\x00', model name must not contain contr"),
        (" ", InvalidRequest, "model name must not contain only whitespace characters"),
        (
            "../plus",
            InvalidRequest,
            "invalid model name '../plus', model name must not contain path traversal characters",
        ),
    ],
)
def test_what_cannot_be_a_model_is_refused(repository, name, error, told):
    with serving(repository, **EXPLICIT) as registry:
        with pytest.raises(error) as refusal:
            registry.load(name)
        assert str(refusal.value).startswith(told)
        assert registry.ready


def test_a_configuration_in_the_request_takes_the_place_of_the_file(repository):
    with serving(repository, **EXPLICIT) as registry:
        registry.load("plus", config='{"max_batch_size": "16", "parameters": {}}')
        config = registry.find("plus").config
        assert config.max_batch_size == 16
        assert config.input[0].dims == (4,)
        assert config.dynamic_batching is not None
        registry.load("plus")
        assert registry.find("plus").config.max_batch_size == 8


@pytest.mark.parametrize(
    "config", ["{", "[]", '{"nope": 1}', '{"max_batch_size": "x"}', '{"backend": "python"}']
)
def test_a_configuration_that_cannot_be_leaves_the_model_as_it_was(repository, config):
    with serving(repository, **EXPLICIT, load_model=("plus",)) as registry:
        model = registry.find("plus")
        with pytest.raises(LoadFailed) as refusal:
            registry.load("plus", config=config)
        told = str(refusal.value)
        assert told.startswith(f"{NOT_THERE}: ")
        assert len(told) > len(NOT_THERE) + 20
        assert registry.find("plus") is model
        assert registry.ready


def test_a_load_that_fails_leaves_the_old_one_serving(repository):
    with serving(repository, **EXPLICIT, load_model=("plus",)) as registry:
        (repository / "plus" / "1" / "model.onnx").write_bytes(b"no model")
        with pytest.raises(InvalidRequest) as refusal:
            registry.load("plus")
        assert str(refusal.value).startswith(
            "load failed for model 'plus': version 1 is at UNAVAILABLE state: "
        )
        assert str(refusal.value).endswith(";\n")
        assert answer(registry.find("plus")) == 5
        assert registry.ready
        adder(repository, "plus", add=6)
        registry.load("plus")
        assert answer(registry.find("plus")) == 6


def test_a_new_version_takes_over_and_others_are_not_loaded_again(repository):
    config = ADDER_CONFIG + "version_policy { latest { num_versions: 2 } }"
    adder(repository, "plus", add=1, config=config)
    with serving(repository, **EXPLICIT, load_model=("plus",)) as registry:
        first = registry.find("plus")
        for version in (2, 3):
            adder(repository, "plus", version=version, add=version)
            registry.load("plus")
            assert answer(registry.find("plus")) == version
            assert registry.versions("plus") == (version - 1, version)
            assert (registry.get("plus", 1) is first) is True
        assert first.state is State.UNAVAILABLE
        (repository / "plus" / "labels.txt").write_text("a\n")
        second = registry.find("plus", 2)
        registry.load("plus")
        assert registry.find("plus", 2) is not second, "a file beside the versions has changed"


def test_files_in_the_request_take_the_place_of_the_folder(repository, tmp_path_factory):
    elsewhere = adder(tmp_path_factory.mktemp("elsewhere"), "plus", add=9)
    files = {"file:1/model.onnx": (elsewhere / "1" / "model.onnx").read_bytes()}
    with serving(repository, **EXPLICIT, load_model=("plus",)) as registry:
        for name in ("plus", "new"):
            registry.load(name, config="{}", files=files)
            assert answer(registry.find(name)) == 9
        registry.load("plus")
        assert answer(registry.find("plus")) == 5
        for name, config in (("plus", None), (".", "{}")):
            with pytest.raises(LoadFailed):
                registry.load(name, config=config, files=files)


@pytest.mark.parametrize(
    "path",
    [
        "file:../1/model.onnx",
        "file:/etc/x",
        "file:1/model.plan",
        "file:1/card.json",
        "file:1/\0",
        "file:",
    ],
)
def test_files_that_may_not_come_over_the_network_are_refused(repository, path):
    with serving(repository, **EXPLICIT, load_model=("plus",)) as registry:
        with pytest.raises(LoadFailed, match=NOT_THERE):
            registry.load("plus", config="{}", files={path: b"content"})
        assert answer(registry.find("plus")) == 5


@pytest.mark.parametrize(
    "config",
    [
        {"default_model_filename": "model"},
        {"backend": "tensorrt"},
        {"backend": "tensorrt-rtx", "default_model_filename": "model.xml"},
        {"platform": "tensorrt_plan"},
    ],
)
def test_a_file_in_the_request_is_never_loaded_as_a_tensorrt_engine(repository, config):
    files = {"1/model": b"plan", "1/model.xml": b"plan"}
    with serving(repository, **EXPLICIT) as registry, pytest.raises(LoadFailed, match=NOT_THERE):
        registry.load("plus", config=json.dumps(config), files=files)


OUTPUT = {"name": "Y", "data_type": "TYPE_INT32", "dims": [4]}


@pytest.mark.parametrize(
    "config",
    [
        {"default_model_filename": "../../other/1/model.onnx"},
        {"default_model_filename": "/etc/passwd"},
        {"output": [OUTPUT | {"label_filename": "../x"}]},
    ],
)
def test_a_configuration_cannot_lead_out_of_its_folder(repository, config):
    with serving(repository, **EXPLICIT) as registry, pytest.raises(InvalidRequest):
        registry.load("plus", config=json.dumps(config))


def test_two_who_load_the_same_model_at_once_get_one(repository):
    with serving(repository, **EXPLICIT) as registry:
        threads = [threading.Thread(target=registry.load, args=("plus",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(list(registry)) == 1
        assert answer(registry.find("plus")) == 5


def test_what_has_died_is_told_and_can_be_loaded_again(repository):
    with serving(repository, **EXPLICIT, load_model=("*",)) as registry:
        registry.find("plus").scheduler._executor.failure = "its engine has died"
        assert registry.reason == "plus: its engine has died"
        assert registry.index()[1] == IndexEntry("plus", "1", "UNAVAILABLE", "its engine has died")
        with pytest.raises(NotFound, match="'plus' has no available versions"):
            registry.find("plus")
        with pytest.raises(ModelNotReady):
            _ = registry.get("plus").scheduler
        assert answer(registry.find("other")) == 1
        registry.load("plus")
        assert answer(registry.find("plus")) == 5
        assert registry.ready


# Models that are loaded and unloaded while requests arrive.


async def ask(registry: Registry, name: str, array: np.ndarray, kind: str) -> InferResponse:
    model = registry.find(name)
    tensor = InputTensor(model.signature.inputs[0].name, kind, array.shape, array.ravel())
    return await model.scheduler.infer(InferRequest(name, None, [tensor]))


def test_unloading_waits_for_what_is_in_flight(shared, tmp_path):
    copied(shared / "data" / "triton" / "models", tmp_path, "slow_identity")

    async def unload_while_busy(registry: Registry) -> None:
        model = registry.find("slow_identity")
        asked = asyncio.create_task(ask(registry, "slow_identity", np.ones(3, np.float32), "FP32"))
        while not model.scheduler.gate.inside:
            await asyncio.sleep(0)
        await asyncio.to_thread(registry.unload, "slow_identity")
        response = await asked
        assert response.outputs[0].array.tolist() == [1, 1, 1]
        assert model.reason == "unloaded"

    with serving(tmp_path, model_control_mode="explicit", load_model=("*",)) as registry:
        asyncio.run(unload_while_busy(registry))


def test_no_request_is_lost_while_a_model_is_loaded_again_and_again(tmp_path):
    adder(tmp_path, "plus", add=1, config=ADDER_CONFIG)
    zero = np.zeros((1, 4), np.int32)

    async def keep_asking(registry: Registry, done: asyncio.Event) -> list[int]:
        seen: list[int] = []
        while not done.is_set():
            response = await ask(registry, "plus", zero, "INT32")
            seen.append(int(response.outputs[0].array[0, 0]))
            await asyncio.sleep(0)
        return seen

    async def reload(registry: Registry) -> list[list[int]]:
        done = asyncio.Event()
        askers = [asyncio.create_task(keep_asking(registry, done)) for _ in range(4)]
        for add in range(2, 8):
            adder(tmp_path, "plus", add=add)
            await asyncio.to_thread(registry.load, "plus")
            assert registry.ready
        done.set()
        return await asyncio.gather(*askers)

    with serving(tmp_path, model_control_mode="explicit", load_model=("*",)) as registry:
        for seen in asyncio.run(reload(registry)):
            assert seen == sorted(seen), "who was answered by the new one never sees the old one"
            assert seen[0] == 1


def test_a_configuration_that_changes_is_a_reason_to_load_again(tmp_path):
    folder = adder(tmp_path, "plus", config=ADDER_CONFIG)
    with serving(tmp_path, model_control_mode="explicit", load_model=("*",)) as registry:
        first = registry.find("plus")
        (folder / CONFIG_FILE).write_text(f"# a comment is no change\n{ADDER_CONFIG}")
        registry.load("plus")
        assert registry.find("plus") is first
        (folder / CONFIG_FILE).write_text(ADDER_CONFIG + "response_cache { enable: true }")
        registry.load("plus")
        assert registry.find("plus").config.response_cache.enable


def test_a_load_is_not_answered_with_the_fault_of_another(tmp_path, monkeypatch):
    """The other begins and fails as soon as this one has ended."""
    adder(tmp_path, "plus", config=ADDER_CONFIG)
    load = ModelSlot.load

    def then_another_fails(slot: ModelSlot, source: Source) -> str:
        fault = load(slot, source)
        slot.refuse("the file of the other is broken", None)
        return fault

    monkeypatch.setattr(ModelSlot, "load", then_another_fails)
    with serving(tmp_path, model_control_mode="explicit") as registry:
        registry.load("plus")
        assert registry.versions("plus") == (1,)
