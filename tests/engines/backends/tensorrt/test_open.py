"""Plans that were built for real are opened on the stand-in for a GPU."""

import json
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
from tests.drawn import draw
from tests.engines.fake_device import FakeDevice
from tests.engines.fake_session import LOAD_FAULTS
from tests.engines.rtx import tamper

from fovea_engines.backends.tensorrt.backend import CACHE_FILE
from fovea_engines.engine import Engine
from fovea_preprocess.errors import (
    BackendUnavailable,
    InferenceFailed,
    InvalidModel,
    OutOfMemory,
)

# It only bounds how long a load is given to spoil a recording.
SOON_S = 1


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


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
    keep = "fovea_engines.backends.tensorrt.engine_file.keep_kernels"
    monkeypatch.setattr(keep, lambda *_: ran.extend(run[1] for run in machine.engines[0].runs))
    Engine.open(folder).close()
    assert set(ran) == {1, 2, 4}


def test_kernels_of_a_repository_that_cannot_be_written_are_kept_elsewhere(machine, folder, caplog):
    (folder / CACHE_FILE).mkdir()  # in the way of the file, also for root
    for _ in range(2):
        Engine.open(folder).close()
    assert [each.config.cache.known for each in machine.engines] == [b"", b"kernels"]
    assert "cannot be kept" not in caplog.text


def test_where_kernels_cannot_be_kept_it_serves(machine, folder, home, caplog):
    (folder / CACHE_FILE).mkdir()
    home.write_text("no folder")
    with Engine.open(folder) as engine:
        assert len(engine.detect(draw(64, 80, 0)))
    assert "cannot be kept: every start compiles them again" in caplog.text
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_a_plan_that_is_refused_gives_everything_back(machine, folder):
    machine.model = None
    with pytest.raises(BackendUnavailable, match=r"model\.plan"):
        Engine.open(folder)


def test_a_gpu_without_the_memory(machine, folder, monkeypatch):
    small = FakeDevice(total=1000)
    monkeypatch.setattr("fovea_engines.backends.tensorrt.engine_file.open_device", lambda: small)
    machine.devices.append(small)
    with pytest.raises(OutOfMemory):
        Engine.open(folder)
    assert not (folder / CACHE_FILE).exists()


@pytest.mark.parametrize(
    ("reason", "error", "says"),
    [
        ("VERSION_MISMATCH", BackendUnavailable, r"\(version mismatch\): build it here"),
        ("UNSUPPORTED_CC", BackendUnavailable, r"\(unsupported cc\): build it here"),
        ("OLD_CUDA_DRIVER", BackendUnavailable, r"\(old cuda driver\): update NVIDIA's driver"),
        ("OLD_CUDA_RUNTIME", BackendUnavailable, r"\(old cuda runtime\): build it here"),
        ("INSUFFICIENT_GPU_MEMORY", OutOfMemory, "does not fit: Fake GPU has 1,073.7 MB of"),
        ("MALFORMED_ENGINE", BackendUnavailable, r"\(malformed engine\): build it here"),
        ("CUDA_ERROR", BackendUnavailable, r"cannot load .* on Fake GPU \(cuda error\)"),
    ],
)
def test_what_tensorrt_objects_to_is_not_loaded(machine, folder, reason, error, says):
    machine.invalid = int(getattr(machine.runtime.trt.EngineInvalidityDiagnostics, reason))
    with pytest.raises(error, match=says):
        Engine.open(folder)
    assert machine.checked == [(folder / "model.plan").stat().st_size]
    assert machine.engines == []


@pytest.mark.parametrize(
    ("said", "error"), [("CUDA error: out of memory", OutOfMemory), ("no", BackendUnavailable)]
)
def test_what_tensorrt_says_of_a_plan_that_it_does_not_load(machine, folder, said, error):
    machine.said = said
    with pytest.raises(error, match="unload a model" if error is OutOfMemory else r"\(no\)"):
        Engine.open(folder)


def test_where_cuda_does_not_start(machine, folder):
    machine.starts = False
    with pytest.raises(BackendUnavailable):
        Engine.open(folder)


@pytest.mark.parametrize(("operation", "when", "after"), LOAD_FAULTS)
def test_a_load_that_fails_lets_go_of_the_engine_before_the_device(
    machine, folder, operation, when, after
):
    """Whoever keeps the error, as a server does that reports it, keeps no engine."""
    machine.prepare = lambda device: device.fail(operation, when, after, times=3)
    with pytest.raises(InferenceFailed):
        Engine.open(folder)
    assert len(machine.engines) == 1
    [device] = machine.devices
    assert device.closed
    assert not device.living
    machine.prepare = lambda device: None
    Engine.open(folder).close()


def test_two_loads_do_not_spoil_each_others_recordings(machine, folder, caplog):
    """The other begins while one records."""
    with ThreadPoolExecutor(1) as pool:
        others = []

        def meanwhile(device):
            if not others:
                others.append(pool.submit(Engine.open, folder))
                # It is over at once where it does not wait for the recording.
                wait(others, SOON_S)

        machine.recording = meanwhile
        with Engine.open(folder) as one, others[0].result() as other:
            for engine in (one, other):
                [image] = engine.session.inputs
                for rows in (1, 1, 2, 2, 4, 4):
                    zeros = np.zeros((rows, *image.shape[1:]), image.dtype)
                    engine.session.infer({image.name: zeros})
            # What had to wait for the other load was recorded with the first batches.
            assert [device.alive["graph"] for device in machine.devices] == [3 * 2, 3 * 2]
    assert "without CUDA graphs" not in caplog.text


def test_plugins_of_the_card_come_first(machine, folder, tmp_path):
    library = tmp_path / "swirl.so"
    library.write_bytes(b"not the one that it was built with")
    builder = json.loads((folder / "card.json").read_text())["builder"]
    plugin = {"path": str(library), "sha256": "0" * 64}
    tamper(folder, builder=builder | {"plugins": [plugin]})
    with pytest.raises(InvalidModel, match=r"swirl\.so"):
        Engine.open(folder)
    assert machine.engines == []
