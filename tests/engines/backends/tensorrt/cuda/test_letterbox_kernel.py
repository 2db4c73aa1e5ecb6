"""The letterbox kernel: it compiles for every GPU, and computes what the host does."""

import functools
import re
from contextlib import ExitStack

import numpy as np
import pytest
from tests.engines.host_kernel import HostDevice, compile_for_host
from tests.letterbox_cases import SPECS, differences, letterboxed, noise, placed, real_images

from fovea_engines.backends.tensorrt.cuda.letterbox import (
    LetterboxKernel,
    compile_cuda,
    compile_letterbox,
    definitions,
    packed_size,
    source,
)
from fovea_preprocess.errors import BackendUnavailable, BuildError
from fovea_preprocess.spec import PreprocessSpec

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The kernel for a spec, compiled for the CPU."""
    folder = tmp_path_factory.mktemp("kernels")

    def compiled(spec: PreprocessSpec) -> bytes:
        return compile_for_host(source(), definitions(spec), folder / f"{spec.digest}.so")

    return functools.cache(compiled)


@pytest.fixture
def device():
    with ExitStack() as stack:
        device = HostDevice()
        stack.callback(device.close)
        yield device
        assert device.misuse == []


@pytest.fixture(scope="module")
def nvrtc():
    try:
        compile_cuda("", "empty.cu", "compute_75")
    except BackendUnavailable as missing:
        pytest.skip(str(missing))


def test_noise_is_letterboxed_as_the_host_does_it(device, compiled):
    images = noise()
    for name, spec in SPECS.items():
        batch = letterboxed(device, compiled(spec), spec, images, len(images))
        for row in differences(batch, spec, images):
            assert row.max() <= 1.1, name


@pytest.mark.parametrize("name", SPECS)
def test_photographs_are_letterboxed_as_the_host_does_it(device, compiled, shared, name):
    spec, images = SPECS[name], real_images(shared)
    batch = letterboxed(device, compiled(spec), spec, images, len(images))
    for row in differences(batch, spec, images):
        assert row.max() <= 1.1
        # Pillow, which makes the crops, begins with the columns of narrow images.
        filtered = spec.fit == "center-crop" or spec.resample == "antialias"
        assert filtered or (row > 0.5).mean() < 1e-4


def test_rows_without_an_image_are_padding(device, compiled):
    spec = SPECS["image front"]
    batch = letterboxed(device, compiled(spec), spec, [np.zeros((90, 160, 3), np.uint8)], 3)
    assert (batch[0, 12:-12] == 0).all()
    assert (batch[1:] == spec.pad).all()


def test_what_does_not_fit_is_refused(device, compiled):
    spec, pixels = SPECS["image front"], np.zeros((4, 5, 3), np.uint8)
    [image] = placed(spec, [pixels])
    with device.current():
        kernel = LetterboxKernel(device, compiled(spec), spec)
        staging = device.pinned(packed_size(1, pixels.nbytes))
        with pytest.raises(ValueError, match="2 images"):
            kernel.pack([image, image], 1, staging)
        with pytest.raises(ValueError, match=f"the buffer has {staging.array.size}"):
            kernel.pack([image], 2, staging)
        kernel.close()
        staging.close()


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("capability", [75, 80, 86, 89, 90, 100, 120])
def test_every_gpu_has_a_kernel(capability):
    ptx = compile_letterbox(SPECS["image front"], f"compute_{capability}").decode()
    assert re.search(r"\.visible \.entry letterbox\(", ptx)
    assert f".target sm_{capability}" in ptx
    assert compile_letterbox(SPECS["yolox"], f"sm_{capability}").startswith(b"\x7fELF")


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("name", SPECS)
def test_every_spec_has_a_kernel(name):
    assert b".entry letterbox" in compile_letterbox(SPECS[name])


@pytest.mark.usefixtures("nvrtc")
def test_a_fault_in_the_source_is_shown():
    with pytest.raises(BuildError, match=r"wrong\.cu"):
        compile_cuda("__global__ void f() { nothing(); }", "wrong.cu", "compute_80")


@pytest.mark.usefixtures("nvrtc")
def test_a_gpu_that_the_compiler_does_not_know():
    with pytest.raises(BuildError, match="nvidia-cuda-nvrtc"):
        compile_letterbox(SPECS["yolo"], "sm_1")
