"""Models that are loaded and unloaded while requests arrive."""

import asyncio

import numpy as np
from tests.server.registries import ADDER_CONFIG, adder, copied, serving

from fovea_engines.repository.config_pbtxt import CONFIG_FILE
from fovea_server.models.registry import Registry
from fovea_server.models.slot import ModelSlot
from fovea_server.models.source import Source
from fovea_server.tensors.messages import InferRequest, InferResponse, InputTensor


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
