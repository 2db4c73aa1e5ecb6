"""A stand-in for a GPU whose kernels run, as CUDA C++ compiled for the CPU, and its sessions."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tests.engines import fake_tensorrt
from tests.engines.fake_device import FakeDevice, Owned
from tests.engines.fake_stream import FakeStream
from tests.engines.fake_tensorrt import FakeEngine
from tests.engines.shared_library import compile_library

from fovea_engines.backends.tensorrt.cuda.letterbox import (
    LETTERBOX_FILE,
    LetterboxKernel,
    definitions,
    pack_kernel,
    source,
)
from fovea_engines.backends.tensorrt.session import TensorRTImageSession
from fovea_preprocess.spec import PreprocessSpec

# Of CUDA C++, what letterbox.cu uses.
CUDA = """
#include <algorithm>
#include <cmath>
#include <cstring>
#define __device__
#define __global__
using std::max;
using std::min;
static thread_local struct { int x, y, z; } blockIdx, blockDim, threadIdx;
static unsigned short half_bits(float value) {
    const _Float16 half = value;
    unsigned short bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}
"""
LAUNCH = """
extern "C" void launch(const int *grid, const int *block, const unsigned char *a, ELEMENT *b) {
    blockDim = {block[0], block[1], block[2]};
    for (int z = 0; z < grid[2]; ++z) for (int y = 0; y < grid[1]; ++y)
    for (int x = 0; x < grid[0]; ++x) for (int k = 0; k < block[2]; ++k)
    for (int j = 0; j < block[1]; ++j) for (int i = 0; i < block[0]; ++i) {
        blockIdx = {x, y, z};
        threadIdx = {i, j, k};
        letterbox(a, b);
    }
}
"""


def compile_for_host(source: str, definitions: list[str], path: Path) -> bytes:
    """letterbox.cu as an image that a `HostDevice` loads: the path of a shared library."""
    compile_library(path, CUDA + source + LAUNCH, "-O2", *definitions)
    return str(path).encode()


class HostKernel(Owned):
    def __init__(self, device: "HostDevice", image: bytes, name: str) -> None:
        super().__init__(device, "kernel")
        assert name == "letterbox"
        self._launch = ctypes.CDLL(image.decode()).launch

    def __call__(
        self,
        stream: FakeStream,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        *args: Any,
    ) -> None:
        assert all(isinstance(address, np.uint64) for address in args)
        memories = [self.device.at(int(address), 0) for address in args]
        triple = ctypes.c_int * 3
        places = [ctypes.c_void_p(memory.bytes.ctypes.data) for memory in memories]
        stream.enqueue("kernel", lambda: self._launch(triple(*grid), triple(*block), *places))


class HostDevice(FakeDevice):
    def kernel(self, image: bytes, name: str) -> HostKernel:
        return HostKernel(self, image, name)


def host_image(spec: PreprocessSpec, folder: Path) -> bytes:
    """The kernel for a spec, as a `HostDevice` loads it."""
    return compile_for_host(source(), definitions(spec), folder / f"{spec.digest}.so")


def write_host_letterbox(folder: Path, spec: PreprocessSpec) -> None:
    """Put that kernel beside a plan."""
    (folder / LETTERBOX_FILE).write_bytes(pack_kernel(host_image(spec, folder), spec))


def through(spec: PreprocessSpec) -> onnx.ModelProto:
    """A network that gives what it takes."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    ends = [
        helper.make_tensor_value_info(name, kind, ["batch", *spec.row_shape])
        for name in ("images", "row")
    ]
    node = helper.make_node("Identity", ["images"], ["row"])
    graph = helper.make_graph([node], "through", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def engine_of(model: Path, device: HostDevice, rows: int) -> FakeEngine:
    """An engine of any ONNX file with a dynamic batch, of up to so many rows."""
    made = FakeEngine(model, device)
    [name] = made.inputs()
    row = made.get_tensor_shape(name)[1:]
    made.profiles = [{name: tuple((n, *row) for n in (1, 1, rows))}]
    return made


def open_images(
    made: FakeEngine, compiled: bytes, spec: PreprocessSpec, *, max_batch: int, slots: int = 2
) -> TensorRTImageSession:
    """A session; `image` is of `host_image`."""
    with made.device.current():
        letterbox = LetterboxKernel(made.device, compiled, spec)
    return TensorRTImageSession(
        made.load(), made.device, fake_tensorrt, letterbox, max_batch=max_batch, slots=slots
    )
