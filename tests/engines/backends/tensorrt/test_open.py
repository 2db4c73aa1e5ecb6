"""Plans that were built for real are opened on the stand-in for a GPU."""

import json

import numpy as np
import pytest
from tests.drawn import draw
from tests.engines.fake_device import FakeDevice
from tests.engines.fake_runtime import FakeModule
from tests.engines.rtx_repository import tamper

from fovea_engines.engine import Engine
from fovea_preprocess.errors import BackendUnavailable, InvalidModel, OutOfMemory
from fovea_tensorrt.backend import CACHE_FILE


def test_it_finds_what_its_source_finds(machine, folder, built_repository):
    pixels = draw(64, 80, 0)
    with Engine.open(folder) as engine, Engine.open(built_repository / "tiny" / "1") as source:
        want, have = source.detect(pixels), engine.detect(pixels)
        assert engine.session.max_batch == 4
    assert len(want)
    np.testing.assert_array_equal(have.class_ids, want.class_ids)
    # The front takes whole grey levels.
    np.testing.assert_allclose(have.boxes, want.boxes, atol=1.5)


def test_kernels_are_kept_beside_the_plan(machine, folder):
    Engine.open(folder).close()
    assert (folder / CACHE_FILE).read_bytes() == b"kernels"
    assert machine.engines[0].config.cache.known == b""
    written = (folder / CACHE_FILE).stat().st_ino
    Engine.open(folder).close()
    assert machine.engines[1].config.cache.known == b"kernels"
    assert (folder / CACHE_FILE).stat().st_ino == written, "there was nothing new to write"


def test_kernels_are_kept_once_every_batch_size_has_run(machine, folder, monkeypatch):
    ran = []
    keep = "fovea_tensorrt.engine_file.keep_kernels"
    monkeypatch.setattr(keep, lambda *_: ran.extend(run[1] for run in machine.engines[0].runs))
    Engine.open(folder).close()
    assert set(ran) == {1, 2, 4}


def test_where_kernels_cannot_be_kept_it_serves(machine, folder):
    (folder / CACHE_FILE).mkdir()  # in the way of the file, also for root
    with Engine.open(folder) as engine:
        assert len(engine.detect(draw(64, 80, 0)))
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_a_plan_that_is_refused_gives_everything_back(machine, folder):
    machine.model = None
    with pytest.raises(BackendUnavailable, match=r"cannot load .*model\.plan on Fake GPU"):
        Engine.open(folder)


def test_a_gpu_without_the_memory(machine, folder, monkeypatch):
    small = FakeDevice(total=1000)
    monkeypatch.setattr("fovea_tensorrt.engine_file.open_device", lambda: small)
    machine.devices.append(small)
    with pytest.raises(OutOfMemory):
        Engine.open(folder)
    assert not (folder / CACHE_FILE).exists()


def test_what_tensorrt_objects_to_is_not_loaded(machine, folder, monkeypatch):
    seen = []

    def validity(self, plan):
        seen.append(len(plan))
        found = self.EngineInvalidityDiagnostics.OLD_CUDA_DRIVER
        return self.EngineValidity.INVALID, int(found)

    monkeypatch.setattr(FakeModule, "get_engine_validity", validity, raising=False)
    with pytest.raises(BackendUnavailable, match="was not built for Fake GPU: old cuda driver"):
        Engine.open(folder)
    assert seen == [(folder / "model.plan").stat().st_size]
    assert machine.engines == []


def test_plugins_of_the_card_come_first(machine, folder, tmp_path):
    library = tmp_path / "swirl.so"
    library.write_bytes(b"not the one that it was built with")
    builder = json.loads((folder / "card.json").read_text())["builder"]
    plugin = {"path": str(library), "sha256": "0" * 64}
    tamper(folder, builder=builder | {"plugins": [plugin]})
    with pytest.raises(InvalidModel, match=r"swirl\.so is not the plugin library that the engine"):
        Engine.open(folder)
    assert machine.engines == []
