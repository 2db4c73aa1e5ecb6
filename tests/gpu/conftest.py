"""The GPU of this machine; every test here is skipped where there is none."""

from pathlib import Path

import cv2
import pytest
from tests.drawn import draw
from tests.engines.tiny import tiny_detector
from tests.gpu.subject import ROWS, Subject

from fovea_engines.backends.registry import available_backends
from fovea_engines.backends.tensorrt.cuda.driver import open_device
from fovea_engines.backends.tensorrt.runtime import Runtime, load_runtime
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_preprocess.errors import BackendUnavailable


@pytest.fixture
def device():
    try:
        found = open_device()
    except BackendUnavailable as reason:
        pytest.skip(str(reason))
    with found:
        yield found


@pytest.fixture(params=["tensorrt", "tensorrt-rtx"])
def backend(request, device) -> str:
    """Each TensorRT that is installed and builds for this GPU."""
    name = request.param
    problem = next(info.problem for info in available_backends() if info.name == name)
    if problem is not None:
        pytest.skip(f"{name}: {problem}")
    try:
        runtime = load_runtime(name)
    except BackendUnavailable as reason:
        pytest.skip(str(reason))
    known, here = runtime.compute_capabilities, "{}{}".format(*device.capability)
    if known and here not in known:
        pytest.skip(f"{name} builds for {', '.join(known)}, and {device.name} is {here}")
    return name


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Timings of another folder than the user's."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def runtime(backend) -> Runtime:
    return load_runtime(backend)


@pytest.fixture
def tiny(tmp_path) -> Subject:
    for number in range(16):
        folder = tmp_path / ("calibration", "images")[number % 2]
        folder.mkdir(exist_ok=True)
        pixels = draw(64 + 2 * number, 80, number)
        cv2.imwrite(str(folder / f"{number}.png"), pixels[..., ::-1])
    model = tiny_detector(tmp_path / "tiny.onnx", depth=4)
    return Subject(model, tmp_path / "calibration", tmp_path / "images")


@pytest.fixture
def folder(backend, tiny, tmp_path) -> Path:
    """A version of the tiny detector."""
    build(BuildPlan(tiny.model, "d", tmp_path / "r", backend, max_batch=ROWS))
    return tmp_path / "r" / "d" / "1"
