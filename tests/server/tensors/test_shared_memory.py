"""Regions of system memory, as tritonclient makes them, and keys that lead astray."""

import gc
import os
import threading
from multiprocessing.shared_memory import SharedMemory as Object
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tritonclient.utils.shared_memory as client
from tests.engines.fake_device import fake_gpu

from fovea_engines.backends.tensorrt.cuda.shared import CudaMemory
from fovea_preprocess.errors import (
    AlreadyExists,
    InvalidRequest,
    NotFound,
    RegionFailed,
    Unsupported,
)
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.shared_memory import (
    CudaSharedMemory,
    SharedRegions,
    SystemRegion,
    SystemSharedMemory,
    max_objects,
)
from fovea_server.tensors.wire import wire

SIZE = 10_000


@pytest.fixture
def memory():
    made = SystemSharedMemory(allowed=True)
    yield made
    made.unregister()


@pytest.fixture
def key():
    """The key of an object with the numbers from 0 as bytes."""
    name = f"/fovea_test_{os.getpid()}"
    made = client.create_shared_memory_region("made", name, SIZE)
    client.set_shared_memory_region(made, [np.arange(SIZE, dtype=np.uint8)])
    yield name
    client.destroy_shared_memory_region(made)


def view(memory: SystemSharedMemory, name: str) -> memoryview:
    found = memory.find(name)
    return found.read(0, found.region.byte_size)


def descriptors() -> int:
    gc.collect()  # what other tests left open closes now, and not between two counts
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_region_is_the_client_s_memory(memory, key):
    memory.register("r", key, 0, SIZE)
    assert view(memory, "r").tobytes() == np.arange(SIZE, dtype=np.uint8).tobytes()
    view(memory, "r")[3] = 77
    assert Path(f"/dev/shm{key}").read_bytes()[3] == 77


@pytest.mark.parametrize("offset", [1, 4095, 4096, 4097, 8192])
def test_a_region_begins_anywhere(memory, key, offset):
    memory.register("r", key, offset, 100)
    assert view(memory, "r").tobytes() == bytes((offset + i) % 256 for i in range(100))


def test_regions_are_listed_by_name(memory, key):
    memory.register("b", key, 0, 64)
    memory.register("a", key, 64, 32)
    first, second = SystemRegion("a", key, 64, 32), SystemRegion("b", key, 0, 64)
    assert memory.status() == [first, second]
    assert memory.status("b") == [second]
    with pytest.raises(NotFound, match=r"^Unable to find system shared memory region: 'c'$"):
        memory.status("c")


def test_a_name_is_taken_once_and_free_again(memory, key):
    memory.register("r", key, 0, 64)
    with pytest.raises(AlreadyExists, match=r"^shared memory region 'r' already in manager$"):
        memory.register("r", key, 0, 32)
    memory.unregister("r")
    memory.unregister("r")
    memory.register("r", key, 0, 32)
    assert len(view(memory, "r")) == 32


@pytest.mark.parametrize(
    "key",
    [
        "/no_such_object",
        "",
        "/",
        ".",
        "..",
        "/..",
        "../../etc/passwd",
        "/../../etc/passwd",
        "/etc/passwd",
        "a/../b",
        "nul\0byte",
        "x" * 300,
        "\udcff",
    ],
)
def test_a_key_that_names_no_object_is_refused(memory, key):
    with pytest.raises(RegionFailed) as refused:
        memory.register("r", key, 0, 64)
    assert str(refused.value) == f"Unable to open shared memory region: '{key}'"
    assert memory.status() == []


def test_links_pipes_and_folders_are_no_objects(memory, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 64)
    made = [Path(f"/dev/shm/fovea_{kind}_{os.getpid()}") for kind in ("link", "pipe", "folder")]
    made[0].symlink_to(secret)
    os.mkfifo(made[1])
    made[2].mkdir()
    try:
        for path in made:
            with pytest.raises(RegionFailed, match="Unable to open"):
                memory.register("r", path.name, 0, 64)
    finally:
        made[0].unlink()
        made[1].unlink()
        made[2].rmdir()


def test_memory_of_triton_s_python_backend_is_not_for_clients(memory):
    with pytest.raises(InvalidRequest, match="triton_python_"):
        memory.register("r", "/triton_python_backend_shm_region_1", 0, 64)


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, SIZE + 1),
        (SIZE, 1),
        (SIZE - 10, 11),
        (2**63, 1),
        (2**64 - 1, 2**64 - 1),
        (0, 2**64 - 1),
        (0, 0),
        (-1, 10),
        (10, -1),
    ],
)
def test_a_region_lies_within_its_object(memory, key, offset, size):
    with pytest.raises(
        InvalidRequest, match=r"^failed to register shared memory region 'r': invalid args$"
    ):
        memory.register("r", key, offset, size)


def test_refusals_leave_nothing_open(memory, key):
    before = descriptors()
    for each in (key, "/no_such_object", ".."):
        with pytest.raises((InvalidRequest, RegionFailed)):
            memory.register("r", each, SIZE, SIZE)
    assert descriptors() == before


def test_a_view_outlives_its_region_and_then_nothing_is_left(memory, key):
    before = descriptors()
    memory.register("r", key, 0, SIZE)
    array = np.frombuffer(view(memory, "r"), np.uint8)
    memory.unregister("r")
    assert array[255] == 255
    del array
    assert descriptors() == before


def test_an_object_that_was_cut_ends_the_request_and_not_the_process(memory, key):
    memory.register("r", key, 0, SIZE)
    os.truncate(f"/dev/shm{key}", 100)
    with pytest.raises(RegionFailed, match=f"^Invalid shared memory region: '{key}'$"):
        view(memory, "r")


def test_an_object_that_was_removed_can_be_used_on(memory):
    made = Object(create=True, size=64)
    memory.register("r", made.name, 0, 64)
    made.buf[0] = 9
    made.close()
    made.unlink()
    assert view(memory, "r")[0] == 9


def test_nobody_may_where_it_is_not_allowed(key):
    refusing = SystemSharedMemory(allowed=False)
    with pytest.raises(Unsupported, match="--allow-client-shm"):
        refusing.register("r", key, 0, 64)
    refusing.unregister()
    assert refusing.status() == []


def test_many_threads_register_and_read_at_once(memory, key):
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(100):
                memory.register(f"r{number}", key, number, 64)
                assert view(memory, f"r{number}")[0] == number
                memory.status()
                memory.unregister(f"r{number}")
        except BaseException as fault:  # noqa: BLE001  the test must hear of it
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert memory.status() == []


def test_regions_of_one_object_hold_one_descriptor(memory, key):
    before = descriptors()
    for index in range(1000):
        memory.register(f"r{index}", key, index, 100)
    assert descriptors() == before + 1
    assert view(memory, "r999").tobytes() == bytes((999 + i) % 256 for i in range(100))
    kept = view(memory, "r7")
    memory.unregister()
    assert kept[0] == 7
    kept.release()
    del kept
    assert descriptors() == before


def test_an_object_that_has_grown_is_mapped_further(memory, key):
    memory.register("before", key, 0, 100)
    with Path(f"/dev/shm{key}").open("ab") as object_:
        object_.write(b"more")
    memory.register("after", key, SIZE, 4)
    assert view(memory, "after").tobytes() == b"more"
    assert view(memory, "before")[99] == 99


def test_more_objects_than_there_are_descriptors_for_are_refused(memory):
    most = max_objects()
    names = [f"fovea_test_many_{os.getpid()}_{index}" for index in range(most + 1)]
    try:
        for name in names:
            Path("/dev/shm", name).write_bytes(bytes(64))
        for name in names[:-1]:
            memory.register(name, name, 0, 64)
        with pytest.raises(RegionFailed, match=rf"^{most} shared memory objects .* unregister"):
            memory.register("one more", names[-1], 0, 64)
        memory.unregister(names[0])
        memory.register("one more", names[-1], 0, 64)
    finally:
        for name in names:
            Path("/dev/shm", name).unlink(missing_ok=True)


# Tensors in regions: what is read, written and refused, in Triton's words.


ROOM = 256
OUTPUT = OutputTensor("OUTPUT0", "INT32", np.arange(16, dtype=np.int32).reshape(1, 16))


@pytest.fixture(params=["system", "cuda"])
def memories(request):
    """Both kinds of memory, a region "r" of 256 bytes in one, and a way to see what is in it."""
    system = SystemSharedMemory(allowed=True)
    with fake_gpu() as device:
        cuda = CudaSharedMemory(allowed=True, memory=lambda: CudaMemory(lambda index: device))
        if request.param == "cuda":
            handle, content = device.lend(ROOM)
            cuda.register("r", handle, 0, ROOM)
            yield system, cuda, content
        else:
            key = f"/fovea_regions_{os.getpid()}"
            made = client.create_shared_memory_region("r", key, ROOM)
            system.register("r", key, 0, ROOM)
            yield system, cuda, client.get_contents_as_numpy(made, np.uint8, [ROOM])
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
        (ROOM, 0, "Invalid offset for shared memory region: 'r'"),
        (2**64 - 1, 64, "Invalid offset for shared memory region: 'r'"),
        (-1, 64, "Invalid offset for shared memory region: 'r'"),
        (0, ROOM + 1, "Invalid offset \\+ byte size for shared memory region: 'r'"),
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
