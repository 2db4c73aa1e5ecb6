"""The GPU of this machine; every test here is skipped where there is none."""

import pytest

from fovea_engines.backends.registry import available_backends
from fovea_preprocess.errors import BackendUnavailable
from fovea_tensorrt.cuda.driver import open_device
from fovea_tensorrt.runtime import load_runtime


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
