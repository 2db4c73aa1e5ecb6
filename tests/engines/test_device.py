"""GPUs are listed as the CUDA driver reports them; the driver is a stand-in."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.shared_library import compile_library

from fovea_engines.device import gpu_here

pytestmark = pytest.mark.real

# As much of the driver as `visible_gpus` asks for.
STAND_IN_FOR_THE_DRIVER = """
#include <cstddef>
#include <cstring>
extern "C" int cuInit(unsigned) { return %d; }
extern "C" int cuDeviceGetCount(int* count) { *count = 2; return 0; }
extern "C" int cuDeviceGet(int* device, int index) { *device = 7 + index; return 0; }
extern "C" int cuDeviceGetName(char* name, int size, int device) {
    std::strncpy(name, device == 7 ? "NVIDIA L4" : "NVIDIA A100", size);
    return 0;
}
extern "C" int cuDeviceGetAttribute(int* value, int which, int device) {
    *value = which == 75 ? 8 : which == 76 ? (device == 7 ? 9 : 0) : -1;
    return 0;
}
extern "C" int cuDeviceTotalMem_v2(size_t* size, int device) {
    *size = device == 7 ? 23034ull << 20 : 40960ull << 20;
    return 0;
}
"""


def ask(folder: Path, failure: int, question: str) -> str:
    compile_library(folder / "libcuda.so.1", STAND_IN_FOR_THE_DRIVER % failure)
    run = subprocess.run(
        [sys.executable, "-c", f"from fovea_engines.device import *; print({question})"],
        env={"LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


@pytest.mark.parametrize(
    ("failure", "found"), [(0, "NVIDIA L4 (compute capability 89)"), (100, "None")]
)
def test_the_driver_says_which_gpu_is_here(tmp_path, failure, found):
    assert ask(tmp_path, failure, "gpu_here()") == found


@pytest.mark.parametrize(
    ("failure", "found"),
    [(0, [("NVIDIA L4", "89", 23034), ("NVIDIA A100", "80", 40960)]), (100, [])],
)
def test_the_driver_says_which_gpus_may_be_used(tmp_path, failure, found):
    question = "[(gpu.name, gpu.capability, size >> 20) for gpu, size in visible_gpus()]"
    assert ask(tmp_path, failure, question) == str(found)


def test_without_a_driver_there_is_no_gpu():
    assert (gpu_here() is not None) == Path("/dev/nvidiactl").exists()
