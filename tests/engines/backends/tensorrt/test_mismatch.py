"""An engine that was built for something else is told by its card, in a sentence."""

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.engines.fake_runtime import gpu_is_here
from tests.engines.rtx import OLD, rtx_version, tamper

from fovea_engines.backends.backend import Backend, BackendInfo
from fovea_engines.backends.registry import mismatch
from fovea_engines.backends.tensorrt.backend import TENSORRT, TENSORRT_RTX
from fovea_engines.device import Gpu
from fovea_engines.engine import Engine
from fovea_engines.repository.card import EngineCard
from fovea_preprocess.errors import BackendUnavailable

A100, L4, L40S = Gpu("NVIDIA A100", "80"), Gpu("NVIDIA L4", "89"), Gpu("NVIDIA L40S", "89")


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    return rtx_version(tmp_path_factory.mktemp("mismatch") / "repository", tiny_model, "tiny")


@pytest.fixture
def rtx(folder):
    return EngineCard.read(folder / "card.json")


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
        f"the engine was built with tensorrt-rtx {OLD} for compute capability 80, and here is "
        f"tensorrt-rtx {rtx.backend_version}"
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
        assert "for compute capability 80, and here is" in reason
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
            f"and here is tensorrt 11.4.0.106 and {gpu}"
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
    folder = tmp_path / f"{distribution}-10.16.1.11.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: {distribution}\nVersion: 10.16.1.11\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert backend.info == BackendInfo(backend.name, "10.16.1.11", None)


def test_engines_of_processors_have_none(card):
    assert mismatch(replace(card, backend_version="0.0.1")) is None


def test_it_is_told_before_anything_is_loaded(folder, tmp_path):
    """Nor is the engine read: a rebuild needs the ONNX alone."""
    folder = tamper(shutil.copytree(folder, tmp_path / "1"), backend_version=OLD)
    (folder / "model.plan").write_bytes(b"")
    with pytest.raises(BackendUnavailable, match="`fovea serve --rebuild`"):
        Engine.open(folder)
    code = (
        "import sys, pathlib; from fovea_engines.engine import Engine\n"
        "try:\n    Engine.open(pathlib.Path(sys.argv[1]))\n"
        "except Exception as error:\n    print(error.code)\n"
        "print([name for name in sys.modules if 'tensorrt_rtx_bindings' in name or "
        "name in ('onnx', 'pycuda', 'fovea_engines.backends.tensorrt.builder')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["backend_unavailable", "[]"]
