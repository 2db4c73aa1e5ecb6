"""The stand-in for a GPU notices what would go wrong on a real one."""

import threading

import pytest
from tests.device_contract import DeviceContract
from tests.engines.fake_device import UNWRITTEN, FakeDevice
from tests.engines.fake_stream import Misuse

from fovea_preprocess.errors import InferenceFailed, OutOfMemory


@pytest.fixture
def device():
    device = FakeDevice(total=1000)
    with device.current():
        yield device


def test_copies_happen_in_the_order_of_their_stream_and_later(device):
    stream, memory, pinned = device.stream(), device.alloc(4), device.pinned(4)
    go = threading.Event()
    device.before = lambda operation, stream: go.wait()
    pinned.array[:] = [1, 2, 3, 4]
    device.copy_in(memory, pinned, 4, stream)
    assert memory.bytes.tolist() == [UNWRITTEN] * 4
    go.set()
    stream.synchronize()
    assert memory.bytes.tolist() == [1, 2, 3, 4]


def test_a_stream_waits_for_an_event_of_another(device):
    first, second, event = device.stream(), device.stream(), device.event()
    memory, pinned, back = device.alloc(4), device.pinned(4), device.pinned(4)
    pinned.array[:] = 7
    go = threading.Event()
    device.before = lambda operation, stream: operation == "copy_in" and go.wait()
    device.copy_in(memory, pinned, 4, first)
    event.record(first)
    second.wait(event)
    device.copy_out(back, memory, 4, second)
    go.set()
    event.synchronize()
    second.synchronize()
    assert back.array.tolist() == [7] * 4
    assert event.milliseconds_since(event) == 0


def test_what_is_captured_happens_at_each_launch(device):
    stream, memory, pinned = device.stream(), device.alloc(1), device.pinned(1)
    with device.capture(stream) as capture:
        device.copy_out(pinned, memory, 1, stream)
        with pytest.raises(InferenceFailed, match="records"):
            stream.synchronize()
    graph = capture.graph()
    for value in (1, 2):
        memory.bytes[:] = value
        graph.launch(stream)
        stream.synchronize()
        assert pinned.array.tolist() == [value]
    graph.close()
    with pytest.raises(Misuse, match="launch after the graph was closed"):
        graph.launch(stream)


def test_writing_to_pinned_memory_before_it_was_copied_is_noticed(device):
    stream, memory, pinned = device.stream(), device.alloc(4), device.pinned(4)
    go = threading.Event()
    device.before = lambda operation, stream: go.wait()
    device.copy_in(memory, pinned, 4, stream)
    pinned.array[:] = 1
    go.set()
    stream.synchronize()
    assert "written to before it was copied" in str(device.misuse)


def test_reading_pinned_memory_too_early_gives_nothing_of_use(device):
    stream, memory, pinned = device.stream(), device.alloc(4), device.pinned(4)
    memory.bytes[:] = 1
    pinned.array[:] = 1
    go = threading.Event()
    device.before = lambda operation, stream: go.wait()
    device.copy_out(pinned, memory, 4, stream)
    assert pinned.array.tolist() == [UNWRITTEN] * 4
    go.set()
    stream.synchronize()
    assert pinned.array.tolist() == [1] * 4


def test_memory_has_an_end(device):
    stream, memory, pinned = device.stream(), device.alloc(4), device.pinned(8)
    with pytest.raises(Misuse, match="beyond the end"):
        device.copy_in(memory, pinned, 8, stream)
    with pytest.raises(Misuse, match="are not there"):
        device.at(memory.address, 8)
    with pytest.raises(OutOfMemory, match="996 are free"):
        device.alloc(997)


def test_what_is_closed_is_not_used(device):
    stream, memory, pinned = device.stream(), device.alloc(4), device.pinned(4)
    memory.close()
    memory.close()
    with pytest.raises(Misuse, match="closed"):
        device.copy_in(memory, pinned, 4, stream)
    stream.close()
    with pytest.raises(Misuse, match="closed"):
        stream.synchronize()
    with pytest.raises(Misuse, match=r"before \{'pinned': 1\}"):
        device.close()


def test_other_threads_make_the_device_theirs_first(device):
    told = []

    def use():
        try:
            device.alloc(4)
        except Misuse as error:
            told.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert told == ["alloc in a thread where the device is not current"]


def test_a_failure_is_told_once_by_what_is_waited_for(device):
    stream, memory, pinned = device.stream(), device.alloc(4), device.pinned(4)
    event = device.event()
    for waited in (stream, event):
        device.fail("copy_in")
        device.copy_in(memory, pinned, 4, stream)
        if waited is event:
            event.record(stream)
        with pytest.raises(InferenceFailed, match="as it was told to"):
            waited.synchronize()
        stream.synchronize()


class TestFakeDevice(DeviceContract):
    """It keeps the contract that the GPU keeps in tests/gpu."""

    @pytest.fixture
    def device(self):
        device = FakeDevice()
        yield device
        device.close()
        assert device.misuse == []
