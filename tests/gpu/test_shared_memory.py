"""Memory that another process has allocated on the GPU."""

import subprocess
import sys

import numpy as np
import pytest

from fovea_preprocess.errors import InvalidRequest
from fovea_server.metrics.machine import read_gpus
from fovea_server.tensors.shared_memory import CudaSharedMemory

pytestmark = pytest.mark.real

SIZE = 1 << 20

# Writes its handle, and what is in it once a line has come.
LENDER = f"""
import ctypes
from cuda.bindings import driver
from fovea_engines.backends.tensorrt.cuda.resources import driver_call
from fovea_engines.backends.tensorrt.cuda.driver import open_device
with open_device() as device, device.current():
    stream, memory, pinned = device.stream(), device.alloc({SIZE}), device.pinned({SIZE})
    pinned.array[:] = 3
    device.copy_in(memory, pinned, {SIZE}, stream)
    stream.synchronize()
    handle = driver_call("cuIpcGetMemHandle", memory.address)
    print(ctypes.string_at(handle.getPtr(), 64).hex(), flush=True)
    input()
    device.copy_out(pinned, memory, {SIZE}, stream)
    stream.synchronize()
    print(pinned.array[:8].tobytes().hex(), flush=True)
    for one in (pinned, memory, stream):
        one.close()
"""


@pytest.fixture
def lender(device):
    process = subprocess.Popen(
        [sys.executable, "-c", LENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield process
        process.kill()


def test_a_region_is_read_and_written_where_it_is(lender):
    memory = CudaSharedMemory(allowed=True)
    handle = bytes.fromhex(lender.stdout.readline())
    with pytest.raises(InvalidRequest, match="invalid args"):
        memory.register("c", handle, 0, 1 << 40)
    memory.register("c", handle, 0, SIZE)
    assert (np.frombuffer(memory.find("c").read(0, SIZE), np.uint8) == 3).all()
    memory.find("c").write(2, memoryview(b"hello"))
    print(file=lender.stdin, flush=True)
    assert bytes.fromhex(lender.stdout.readline()) == b"\3\3hello\3"
    memory.close()


def test_the_gpu_says_what_it_does(device):
    readings = read_gpus()
    assert readings
    for uuid, reading in readings.items():
        assert uuid
        assert reading["nv_gpu_memory_total_bytes"]
