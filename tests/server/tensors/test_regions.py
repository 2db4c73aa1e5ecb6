"""Tensors in regions: what is read, written and refused, in Triton's words."""

import os

import ml_dtypes
import numpy as np
import pytest
import tritonclient.utils.shared_memory as client
from tests.engines.fake_device import fake_gpu

from fovea_engines.backends.tensorrt.cuda.shared import CudaMemory
from fovea_preprocess.errors import InvalidRequest, NotFound, RegionFailed
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.shared_memory import CudaSharedMemory, SharedRegions, SystemSharedMemory
from fovea_server.tensors.wire import wire

SIZE = 256
OUTPUT = OutputTensor("OUTPUT0", "INT32", np.arange(16, dtype=np.int32).reshape(1, 16))


@pytest.fixture(params=["system", "cuda"])
def memories(request):
    """Both kinds of memory, a region "r" of 256 bytes in one, and a way to see what is in it."""
    system = SystemSharedMemory(allowed=True)
    with fake_gpu() as device:
        cuda = CudaSharedMemory(allowed=True, memory=lambda: CudaMemory(lambda index: device))
        if request.param == "cuda":
            handle, content = device.lend(SIZE)
            cuda.register("r", handle, 0, SIZE)
            yield system, cuda, content
        else:
            key = f"/fovea_regions_{os.getpid()}"
            made = client.create_shared_memory_region("r", key, SIZE)
            system.register("r", key, 0, SIZE)
            yield system, cuda, client.get_contents_as_numpy(made, np.uint8, [SIZE])
            system.unregister()
            client.destroy_shared_memory_region(made)
        cuda.close()


@pytest.fixture
def regions(memories):
    """The same, as requests meet it."""
    system, cuda, content = memories
    return SharedRegions(system, cuda), content


def put(place, output):
    data = wire(output)
    place.write(output.name, data)
    return memoryview(data).nbytes


def test_bytes_are_read_where_they_are(regions):
    here, content = regions
    content[64:128] = np.arange(16, dtype=np.int32).view(np.uint8)
    view = here.read("r", 64, 64)
    assert np.frombuffer(view, np.int32).tolist() == list(range(16))
    assert here.read("r", 255, 1).nbytes == 1
    assert here.read("r", 0, 0).nbytes == 0


@pytest.mark.parametrize(
    ("dtype", "datatype"),
    [
        (np.int32, "INT32"),
        (np.float16, "FP16"),
        (ml_dtypes.bfloat16, "BF16"),
        (np.bool_, "BOOL"),
        (np.float64, "FP64"),
    ],
)
def test_an_output_is_written_as_the_wire_has_it(regions, dtype, datatype):
    here, content = regions
    array = np.arange(8).astype(dtype).reshape(2, 4)
    written = put(here.output("r", 32, 64), OutputTensor("Y", datatype, array))
    assert written == array.nbytes
    assert content[32 : 32 + written].tobytes() == array.tobytes()


def test_strings_are_written_behind_their_lengths(regions):
    here, content = regions
    array = np.array([b"ab", b""], object)
    assert put(here.output("r", 0, 64), OutputTensor("Y", "BYTES", array)) == 10
    assert content[:10].tobytes() == b"\2\0\0\0ab\0\0\0\0"


def test_an_output_of_no_elements_is_written(regions):
    here, _ = regions
    nothing = OutputTensor("Y", "FP32", np.empty((0, 4), np.float32))
    assert put(here.output("r", 0, 0), nothing) == 0


def test_a_region_that_is_not_there(regions):
    here, _ = regions
    for act in (lambda: here.read("nope", 0, 1), lambda: here.output("nope", 0, 64)):
        with pytest.raises(NotFound, match=r"^Unable to find shared memory region: 'nope'$"):
            act()


@pytest.mark.parametrize(
    ("offset", "size", "words"),
    [
        (SIZE, 0, "Invalid offset for shared memory region: 'r'"),
        (2**64 - 1, 64, "Invalid offset for shared memory region: 'r'"),
        (-1, 64, "Invalid offset for shared memory region: 'r'"),
        (0, SIZE + 1, "Invalid offset \\+ byte size for shared memory region: 'r'"),
        (250, 7, "Invalid offset \\+ byte size for shared memory region: 'r'"),
        (1, 2**64 - 1, "Invalid offset \\+ byte size for shared memory region: 'r'"),
        (0, -1, "Invalid offset \\+ byte size for shared memory region: 'r'"),
    ],
)
def test_what_is_behind_the_end_is_refused(regions, offset, size, words):
    here, _ = regions
    for act in (
        lambda: here.read("r", offset, size),
        lambda: here.output("r", offset, size),
    ):
        with pytest.raises(InvalidRequest, match=f"^{words}$"):
            act()


def test_room_that_is_too_small_is_told_and_left_as_it_was(regions):
    here, content = regions
    before = content.copy()
    with pytest.raises(RegionFailed) as refused:
        put(here.output("r", 64, 32), OUTPUT)
    assert str(refused.value) == (
        "shared memory size specified with the request for output 'OUTPUT0' (32 bytes) should be "
        "at least 64 bytes to hold the results"
    )
    assert np.array_equal(content, before)


def test_room_and_bytes_stay_when_their_region_is_unregistered(memories):
    system, cuda, content = memories
    here = SharedRegions(system, cuda)
    content[:4] = 7
    place, view = here.output("r", 64, 64), here.read("r", 0, 4)
    system.unregister()
    cuda.unregister()
    with pytest.raises(NotFound):
        here.output("r", 64, 64)
    assert put(place, OUTPUT) == 64
    assert content[64:128].tobytes() == OUTPUT.array.tobytes()
    assert view.tobytes() == bytes([7] * 4)
