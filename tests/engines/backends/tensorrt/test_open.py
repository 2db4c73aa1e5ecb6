"""Plans that were built for real are opened on the stand-in for a GPU."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.drawn import draw
from tests.engines.fake_device import FakeDevice
from tests.engines.fake_runtime import gpu_is_here
from tests.engines.fake_session import LOAD_FAULTS
from tests.engines.rtx import OLD, rtx_version, tamper

from fovea_engines.backends.backend import Backend, BackendInfo
from fovea_engines.backends.registry import mismatch
from fovea_engines.backends.tensorrt.backend import CACHE_FILE, TENSORRT, TENSORRT_RTX
from fovea_engines.device import Gpu
from fovea_engines.engine import Engine
from fovea_engines.repository.card import EngineCard
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
    assert "cannot be stored" not in caplog.text


def test_where_kernels_cannot_be_kept_it_serves(machine, folder, home, caplog):
    (folder / CACHE_FILE).mkdir()
    home.write_text("no folder")
    with Engine.open(folder) as engine:
        assert len(engine.detect(draw(64, 80, 0)))
    assert "cannot be stored" in caplog.text
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
        (
            "VERSION_MISMATCH",
            BackendUnavailable,
            r"\(version mismatch\): build the engine on this machine",
        ),
        (
            "UNSUPPORTED_CC",
            BackendUnavailable,
            r"\(unsupported cc\): build the engine on this machine",
        ),
        ("OLD_CUDA_DRIVER", BackendUnavailable, r"\(old cuda driver\): update the NVIDIA driver"),
        (
            "OLD_CUDA_RUNTIME",
            BackendUnavailable,
            r"\(old cuda runtime\): build the engine on this machine",
        ),
        (
            "INSUFFICIENT_GPU_MEMORY",
            OutOfMemory,
            "not enough GPU memory .* Fake GPU has 1,073.7 MB of",
        ),
        (
            "MALFORMED_ENGINE",
            BackendUnavailable,
            r"\(malformed engine\): build the engine on this machine",
        ),
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


# An engine that was built for something else is told by its card, in a sentence.


A100, L4, L40S = Gpu("NVIDIA A100", "80"), Gpu("NVIDIA L4", "89"), Gpu("NVIDIA L40S", "89")


@pytest.fixture(scope="module")
def built(tiny_model, tmp_path_factory):
    return rtx_version(tmp_path_factory.mktemp("mismatch") / "repository", tiny_model, "tiny")


@pytest.fixture
def rtx(built):
    return EngineCard.read(built / "card.json")


@pytest.fixture
def tensorrt(rtx):
    """The card of an engine of TensorRT, which cannot be had here."""
    builder = replace(rtx.builder, capabilities=())
    return replace(rtx, backend="tensorrt", backend_version="11.4.0.106", builder=builder, gpu=L4)


def test_what_was_built_here_fits(rtx):
    assert rtx.gpu is None
    assert mismatch(rtx) is None


def test_another_release(rtx):
    reason = mismatch(replace(rtx, backend_version=OLD))
    assert reason == (
        f"the engine was built with tensorrt-rtx {OLD} for compute capability 80, "
        f"but this machine has tensorrt-rtx {rtx.backend_version}"
    )


def test_another_build_of_a_release_fits(rtx):
    release, _, _ = rtx.backend_version.rpartition(".")
    assert mismatch(replace(rtx, backend_version=f"{release}.999")) is None


@pytest.mark.parametrize(("gpu", "fits"), [(A100, True), (L4, False), (None, True)])
def test_the_gpus_that_an_engine_was_built_for(rtx, gpu, fits):
    with gpu_is_here(gpu):
        reason = mismatch(rtx)
        assert (reason is None) == fits
        both = replace(rtx, builder=replace(rtx.builder, capabilities=("80", "89")))
        assert mismatch(both) is None
    if reason:
        assert "for compute capability 80, but this machine has" in reason
        assert reason.endswith("and NVIDIA L4 (compute capability 89)")


def test_rtx_compiles_for_every_gpu_of_a_capability(tensorrt):
    rtx = replace(tensorrt, backend="tensorrt-rtx", backend_version="")
    with gpu_is_here(L40S), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Backend, "info", BackendInfo("tensorrt-rtx", "", None))
        assert mismatch(rtx) is None
        assert mismatch(replace(rtx, gpu=A100)) is not None


@pytest.mark.parametrize(("gpu", "fits"), [(L4, True), (L40S, False), (A100, False), (None, True)])
def test_tensorrt_was_timed_on_one_gpu(tensorrt, gpu, fits):
    with gpu_is_here(gpu):
        reason = mismatch(tensorrt)
        assert (reason is None) == fits
        assert mismatch(replace(tensorrt, gpu=None)) is None, "a card of before there was the field"
    if reason:
        assert reason == (
            "the engine was built with tensorrt 11.4.0.106 for NVIDIA L4 (compute capability 89), "
            f"but this machine has tensorrt 11.4.0.106 and {gpu}"
        )


@pytest.mark.parametrize(
    ("distribution", "backend"),
    [
        ("tensorrt", TENSORRT),
        ("tensorrt_cu12", TENSORRT),
        ("tensorrt_cu13", TENSORRT),
        ("tensorrt_rtx", TENSORRT_RTX),
        ("tensorrt_rtx_cu12_bindings", TENSORRT_RTX),
        ("tensorrt_rtx_cu13_bindings", TENSORRT_RTX),
    ],
)
def test_any_of_its_distributions_is_the_runtime(tmp_path, monkeypatch, distribution, backend):
    built = tmp_path / f"{distribution}-10.16.1.11.dist-info"
    built.mkdir()
    (built / "METADATA").write_text(f"Name: {distribution}\nVersion: 10.16.1.11\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert backend.info == BackendInfo(backend.name, "10.16.1.11", None)


def test_engines_of_processors_have_none(card):
    assert mismatch(replace(card, backend_version="0.0.1")) is None


def test_it_is_told_before_anything_is_loaded(built, tmp_path):
    """Nor is the engine read: a rebuild needs the ONNX alone."""
    built = tamper(shutil.copytree(built, tmp_path / "1"), backend_version=OLD)
    (built / "model.plan").write_bytes(b"")
    with pytest.raises(BackendUnavailable, match="`fovea serve --rebuild`"):
        Engine.open(built)
    code = (
        "import sys, pathlib; from fovea_engines.engine import Engine\n"
        "try:\n    Engine.open(pathlib.Path(sys.argv[1]))\n"
        "except Exception as error:\n    print(error.code)\n"
        "print([name for name in sys.modules if 'tensorrt_rtx_bindings' in name or "
        "name in ('onnx', 'pycuda', 'fovea_engines.backends.tensorrt.builder')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, built], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["backend_unavailable", "[]"]
