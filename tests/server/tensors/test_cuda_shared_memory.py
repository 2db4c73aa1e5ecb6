"""Regions of a GPU's memory, on the stand-in for one; and machines that have none."""

import numpy as np
import pytest
from tests.engines.fake_device import fake_gpu

from fovea_engines.backends.tensorrt.cuda.shared import CudaMemory
from fovea_engines.device import gpu_here
from fovea_preprocess.errors import (
    AlreadyExists,
    BackendUnavailable,
    InvalidRequest,
    NotFound,
    OutOfMemory,
    RegionFailed,
    Unsupported,
)
from fovea_server.tensors.shared_memory import CudaRegion, CudaSharedMemory

SIZE = 4096


@pytest.fixture
def device():
    with fake_gpu() as made:
        yield made


@pytest.fixture
def memory(device):
    def opens(index: int):
        if index != 0:
            raise BackendUnavailable(f"there is no GPU {index}")
        return device

    made = CudaSharedMemory(allowed=True, memory=lambda: CudaMemory(opens))
    yield made
    made.close()


@pytest.fixture
def lent(device):
    """The handle and the bytes of what another process has allocated: numbers from 0."""
    handle, content = device.lend(SIZE)
    content[:] = np.arange(SIZE, dtype=np.uint8)
    return handle, content


def test_a_part_of_a_region_is_read_and_written(memory, lent):
    handle, content = lent
    memory.register("c", handle, 0, SIZE)
    assert memory.find("c").read(10, 4).tobytes() == bytes([10, 11, 12, 13])
    memory.find("c").write(100, memoryview(b"hello"))
    assert content[99:106].tobytes() == bytes([99]) + b"hello" + bytes([105])
    assert memory.find("c").read(100, 5).tobytes() == b"hello"


def test_what_was_read_stays_as_it_was(memory, lent):
    handle, content = lent
    memory.register("c", handle, 0, SIZE)
    first = memory.find("c").read(0, 4)
    content[:] = 0
    memory.find("c").read(0, 4)
    memory.unregister()
    assert first.tobytes() == bytes([0, 1, 2, 3])


def test_nothing_can_be_read_and_written(memory, lent):
    memory.register("c", lent[0], 0, SIZE)
    assert memory.find("c").read(0, 0).nbytes == 0
    memory.find("c").write(0, memoryview(b""))


def test_regions_are_listed_taken_once_and_given_back(memory, device, lent):
    handle, _ = lent
    memory.register("b", handle, 0, SIZE)
    memory.register("a", handle, 0, 64)
    assert memory.status() == [CudaRegion("a", 0, 64), CudaRegion("b", 0, SIZE)]
    assert memory.status("a") == [CudaRegion("a", 0, 64)]
    assert memory.find("a").region.byte_size == 64
    assert memory.find("c") is None
    with pytest.raises(AlreadyExists, match=r"^shared memory region 'a' already in manager$"):
        memory.register("a", handle, 0, 64)
    memory.unregister("a")
    memory.unregister("a")
    with pytest.raises(NotFound, match=r"^Unable to find cuda shared memory region: 'a'$"):
        memory.status("a")
    memory.unregister()
    assert memory.status() == []
    assert not any(device.alive.values())


@pytest.mark.parametrize("size", [0, -1, SIZE + 1, 2**64 - 1])
def test_a_region_lies_within_what_was_lent(memory, device, lent, size):
    with pytest.raises(
        InvalidRequest, match=r"^failed to register shared memory region 'c': invalid args$"
    ):
        memory.register("c", lent[0], 0, size)
    assert not any(device.alive.values())


@pytest.mark.parametrize("handle", [b"", b"\0\0\0", b"x" * 63, b"x" * 65])
def test_a_handle_has_its_size(memory, handle):
    with pytest.raises(
        InvalidRequest,
        match=r"^'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t$",
    ):
        memory.register("c", handle, 0, 64)


@pytest.mark.parametrize("device_id", [0, 1, -1, 2**40])
def test_what_no_gpu_knows_is_refused(memory, device_id):
    with pytest.raises(
        InvalidRequest, match=r"^failed to register shared memory region: invalid args$"
    ):
        memory.register("c", b"x" * 64, device_id, 64)
    assert memory.status() == []


def test_a_registration_that_fails_half_way_leaves_nothing(memory, device, lent, monkeypatch):
    def full(size: int) -> None:
        raise OutOfMemory("no host memory is left")

    monkeypatch.setattr(device, "pinned", full)
    with pytest.raises(InvalidRequest, match=r"invalid args$"):
        memory.register("c", lent[0], 0, SIZE)
    assert not any(device.alive.values())


@pytest.mark.parametrize("operation", ["copy_in", "copy_out"])
def test_a_copy_that_fails_is_the_request_s_fault_alone(memory, device, lent, operation):
    memory.register("c", lent[0], 0, SIZE)
    device.fail(operation)
    act = {
        "copy_in": lambda: memory.find("c").write(0, memoryview(b"x")),
        "copy_out": lambda: memory.find("c").read(0, 1),
    }
    with pytest.raises(RegionFailed, match=f"'c': {operation} failed"):
        act[operation]()
    assert memory.find("c").read(1, 1).tobytes() == bytes([1])


def test_a_region_stays_open_while_it_is_held(memory, device, lent):
    handle, content = lent
    memory.register("c", handle, 0, SIZE)
    held = memory.find("c")
    memory.unregister("c")
    held.write(0, memoryview(b"late"))
    assert content[:4].tobytes() == b"late"
    del held
    assert not any(device.alive.values())


def test_nobody_may_where_it_is_not_allowed():
    refusing = CudaSharedMemory(allowed=False)
    with pytest.raises(Unsupported, match="--allow-client-shm"):
        refusing.register("c", b"x" * 64, 0, 64)
    refusing.unregister()
    assert refusing.status() == []


@pytest.mark.skipif(gpu_here() is not None, reason="this machine has a GPU")
def test_a_machine_without_a_gpu_says_what_triton_says():
    memory = CudaSharedMemory(allowed=True)
    with pytest.raises(
        InvalidRequest, match=r"^failed to register shared memory region: invalid args$"
    ):
        memory.register("c", b"x" * 64, 0, 64)
    memory.unregister("c")
    memory.close()
