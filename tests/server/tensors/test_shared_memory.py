"""Regions of system memory, as tritonclient makes them, and keys that lead astray."""

import gc
import os
import threading
from multiprocessing.shared_memory import SharedMemory as Object
from pathlib import Path

import numpy as np
import pytest
import tritonclient.utils.shared_memory as client

from fovea_preprocess.errors import (
    AlreadyExists,
    InvalidRequest,
    NotFound,
    RegionFailed,
    Unsupported,
)
from fovea_server.tensors.shared_memory import SystemRegion, SystemSharedMemory, max_objects

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
