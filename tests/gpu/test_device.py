"""The device layer over pycuda, on a GPU."""

import numpy as np
import pytest
from tests.device_contract import DeviceContract

from fovea_engines.backends.tensorrt.cuda.driver import open_device
from fovea_engines.backends.tensorrt.cuda.letterbox import compile_cuda
from fovea_preprocess.errors import InferenceFailed

pytestmark = pytest.mark.real

# Waits for another stream to write; two seconds of cycles are more than a copy ever takes.
AWAIT = """
extern "C" __global__ void await(volatile unsigned char *flag, unsigned char *seen) {
    const long long begin = clock64();
    while (!*flag && clock64() - begin < 4000000000LL) {}
    *seen = *flag;
}
"""


class TestDevice(DeviceContract):
    pass


@pytest.mark.parametrize("target", ["compute_75", "sm_{}{}"])
def test_copies_go_on_while_a_kernel_runs(device, target):
    image = compile_cuda(AWAIT, "await.cu", target.format(*device.capability))
    with device.current():
        computing, copying = device.stream(), device.stream()
        flag, seen, pinned = device.alloc(1), device.alloc(1), device.pinned(1)
        result = device.pinned(1)
        kernel = device.kernel(image, "await")
        pinned.array[:] = 0
        device.copy_in(flag, pinned, 1, computing)
        device.copy_in(seen, pinned, 1, computing)
        computing.synchronize()
        kernel(computing, (1, 1, 1), (1, 1, 1), np.uint64(flag.address), np.uint64(seen.address))
        # Both ways, and the second ends the kernel: it would wait in vain if they came after it.
        device.copy_out(result, seen, 1, copying)
        copying.synchronize()
        pinned.array[:] = 7
        device.copy_in(flag, pinned, 1, copying)
        device.copy_out(result, seen, 1, computing)
        computing.synchronize()
        assert result.array.tolist() == [7]
        for one in (kernel, flag, seen, pinned, result, computing, copying):
            one.close()


def test_an_image_that_is_none_is_refused(device):
    with device.current(), pytest.raises(InferenceFailed, match="the kernel await"):
        device.kernel(b"no image\0", "await")


def test_two_devices_are_one_gpu(device):
    with open_device() as other:
        assert other.name == device.name
    with device.current():
        device.alloc(1).close()
