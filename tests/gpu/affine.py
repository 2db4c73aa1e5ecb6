"""A kernel that a test can hold up, or let crash the GPU."""

import ctypes
from time import monotonic

import numpy as np

from fovea_engines.backends.tensorrt.cuda.driver import Device
from fovea_engines.backends.tensorrt.cuda.letterbox import compile_cuda
from fovea_engines.backends.tensorrt.cuda.resources import driver_call

PATIENCE_S = 60

# By way of the workspace, with a wait between: whoever computes in another's workspace spoils it.
# control is {until, begun}: the first batch waits until so many have begun, and gives no numbers if
# they do not come within 2e10 cycles, ten seconds; a negative one crashes the GPU.
SOURCE = """
extern "C" __global__ void affine(
    const float *x, volatile float *work, float *y, unsigned count, volatile int *control
) {
    __shared__ bool came;
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) work[i] = 2 * x[i];
    __syncthreads();
    if (threadIdx.x == 0) {
        const long long start = clock64();
        const bool first = atomicAdd((int *)control + 1, 1) == 0;
        while (first && control[1] < control[0] && clock64() - start < 20000000000LL) {}
        if (control[0] < 0) __trap();
        came = !first || control[1] >= control[0];
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x)
        y[i] = came ? work[i] + 1 : nanf("");
}
"""
_TYPES = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p)


class Affine:
    """y = 2 x + 1 of float32.

    Args:
        device: where; closed after it.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        image = compile_cuda(SOURCE, "affine.cu", "sm_{}{}".format(*device.capability))
        with device.current():
            self._module = driver_call("cuModuleLoadData", image)
            self._function = driver_call("cuModuleGetFunction", self._module, b"affine")
            self._control, self._pinned = device.alloc(8), device.pinned(8)
            self._stream = device.stream()
        self._numbers = self._pinned.array.view(np.int32)
        self._write(0, 0)

    def enqueue(self, stream: int, x: int, workspace: int, y: int, count: int) -> None:
        """Enqueue it as TensorRT enqueues its kernels: pycuda takes no stream by its handle."""
        values = x, workspace, y, count, self._control.address
        grid, block, shared = (1, 1, 1), (256, 1, 1), 0
        arguments = (*grid, *block, shared, stream, (values, _TYPES), 0)
        driver_call("cuLaunchKernel", self._function, *arguments)

    def hold(self, others: int) -> None:
        """Let the next batch wait, as it computes, until so many others compute or did."""
        self._write(1 + others, 0)

    def let_go(self) -> None:
        """Let the batch that waits go on."""
        self._write(0)

    def crash(self) -> None:
        """Let the next batch crash the GPU for this process."""
        self._write(-1)

    def wait_for_a_batch(self) -> None:
        """Wait until one computes, after `hold`."""
        end = monotonic() + PATIENCE_S
        with self._device.current():
            while not self._numbers[1]:
                assert monotonic() < end, "no batch has begun"
                self._device.copy_out(self._pinned, self._control, 8, self._stream)
                self._stream.synchronize()

    def _write(self, *numbers: int) -> None:
        self._numbers[: len(numbers)] = numbers
        with self._device.current():
            self._device.copy_in(self._control, self._pinned, 4 * len(numbers), self._stream)
            self._stream.synchronize()

    def close(self) -> None:
        del self._numbers
        with self._device.current():
            for one in (self._control, self._pinned, self._stream):
                one.close()
            driver_call("cuModuleUnload", self._module)
