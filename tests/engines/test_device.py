"""GPUs as the CUDA driver reports them, which is a stand-in, and what a CPU can compute."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.shared_library import compile_library

from fovea_engines.device import gpu_here, int8_saturates

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


@pytest.mark.real
@pytest.mark.parametrize(
    ("failure", "here", "visible"),
    [
        (
            0,
            "NVIDIA L4 (compute capability 89)",
            [("NVIDIA L4", "89", 23034), ("NVIDIA A100", "80", 40960)],
        ),
        (100, "None", []),
    ],
)
def test_the_driver_says_which_gpus_are_here(tmp_path, failure, here, visible):
    compile_library(tmp_path / "libcuda.so.1", STAND_IN_FOR_THE_DRIVER % failure)
    code = (
        "from fovea_engines.device import *; print(gpu_here());"
        "print([(gpu.name, gpu.capability, size >> 20) for gpu, size in visible_gpus()])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines() == [here, str(visible)]


def test_without_a_driver_there_is_no_gpu():
    assert (gpu_here() is not None) == Path("/dev/nvidiactl").exists()


@pytest.mark.parametrize(
    ("machine", "flags", "saturates"),
    [
        ("x86_64", "avx2 fma", True),
        ("x86_64", "avx2 avx512f", True),
        ("x86_64", "avx2 avx_vnni", False),
        ("AMD64", "avx512f avx512_vnni", False),
        ("x86_64", "amx_int8", False),
        ("x86_64", None, True),
        ("aarch64", None, False),
        ("arm64", None, False),
    ],
)
def test_which_processors_saturate(tmp_path, monkeypatch, machine, flags, saturates):
    monkeypatch.setattr("platform.machine", lambda: machine)
    if flags is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert int8_saturates(tmp_path) is saturates
