"""A plan that was built for real, and a stand-in for the GPU that opens it."""

import shutil
from pathlib import Path

import pytest
from tests.engines.fake_device import FakeDevice
from tests.engines.fake_runtime import fake_gpu_machine

from fovea_engines.backends.tensorrt.backend import KEPT_FILE
from fovea_engines.device import Gpu


@pytest.fixture(scope="session")
def built_plan(tiny_model, tmp_path_factory) -> Path:
    # Skips where TensorRT for RTX is not installed, which other tests here do not need.
    from tests.engines.rtx import rtx_version

    return rtx_version(tmp_path_factory.mktemp("plan") / "repository", tiny_model, "tiny")


@pytest.fixture
def folder(built_plan, tmp_path) -> Path:
    return shutil.copytree(built_plan, tmp_path / "tiny" / "1")


@pytest.fixture
def machine(folder):
    with fake_gpu_machine(Gpu(FakeDevice.name, "80")) as machine:
        machine.model = folder / KEPT_FILE
        yield machine
