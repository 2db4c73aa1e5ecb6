"""The promises of `Device` (TensorRT's `cuda.driver`), for a GPU and its stand-in."""

import threading

import numpy as np
import pytest

from fovea_preprocess.errors import InferenceFailed, OutOfMemory

SIZE = 1 << 20


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)


class DeviceContract:
    """Tests of a fixture `device`."""

    @pytest.fixture
    def taken(self, device):
        """A stream, memory and two pinned buffers, in a thread where the device is current."""
        with device.current():
            stream, memory = device.stream(), device.alloc(SIZE)
            source, result = device.pinned(SIZE), device.pinned(SIZE)
            yield stream, memory, source, result
            for one in (stream, memory, source, result):
                one.close()

    def test_it_says_what_it_is(self, device):
        assert device.name
        assert device.capability >= (7, 5)

    def test_bytes_come_back_as_they_went(self, device, taken):
        stream, memory, source, result = taken
        source.array[:] = noise(0)
        device.copy_in(memory, source, SIZE, stream)
        device.copy_out(result, memory, SIZE, stream)
        stream.synchronize()
        assert np.array_equal(result.array, noise(0))

    def test_only_so_many_bytes_are_copied(self, device, taken):
        stream, memory, source, result = taken
        source.array[:] = 0
        device.copy_in(memory, source, SIZE, stream)
        stream.synchronize()
        source.array[:] = 1
        device.copy_in(memory, source, 10, stream)
        device.copy_out(result, memory, SIZE, stream)
        stream.synchronize()
        assert result.array[:10].all()
        assert not result.array[10:].any()

    def test_a_part_of_memory_is_copied_to_and_from(self, device, taken):
        stream, memory, source, result = taken
        source.array[:] = noise(0)
        device.copy_in(memory, source, SIZE, stream)
        device.copy_out(result, memory.at(100).at(23), 10, stream)
        stream.synchronize()
        assert np.array_equal(result.array[:10], noise(0)[123:133])
        source.array[:10] = 7
        part = memory.at(SIZE - 10)
        assert part.size == 10
        device.copy_in(part, source, 10, stream)
        part.close()
        device.copy_out(result, memory, SIZE, stream)
        stream.synchronize()
        assert np.array_equal(result.array[:-10], noise(0)[:-10])
        assert (result.array[-10:] == 7).all()

    def test_a_handle_that_is_none_is_refused(self, device):
        with device.current(), pytest.raises(InferenceFailed):
            device.open_shared(bytes(64))

    def test_memory_is_counted_and_given_back(self, device):
        with device.current():
            before, total = device.memory()
            memory = device.alloc(64 * SIZE)
            assert memory.size == 64 * SIZE
            during, _ = device.memory()
            assert total >= before >= during + memory.size
            memory.close()
            after, _ = device.memory()
        assert after > during

    def test_what_is_not_there_is_refused_with_figures(self, device):
        with device.current():
            _, total = device.memory()
            with pytest.raises(OutOfMemory, match=r"\d+.* wanted.*\d+.* free"):
                device.alloc(2 * total)

    def test_closing_twice_does_nothing(self, device):
        with device.current():
            everything = device.stream(), device.event(), device.alloc(1), device.pinned(1)
            for one in everything * 2:
                one.close()

    def test_a_stream_waits_for_what_another_has_recorded(self, device, taken):
        stream, memory, source, result = taken
        other, copied = device.stream(), device.event()
        source.array[:] = noise(1)
        device.copy_in(memory, source, SIZE, stream)
        copied.record(stream)
        other.wait(copied)
        device.copy_out(result, memory, SIZE, other)
        other.synchronize()
        assert np.array_equal(result.array, noise(1))
        other.close()
        copied.close()

    def test_events_take_times(self, device, taken):
        stream, memory, source, _ = taken
        begin, end = device.event(), device.event()
        begin.record(stream)
        device.copy_in(memory, source, SIZE, stream)
        end.record(stream)
        end.synchronize()
        assert end.milliseconds_since(begin) > 0
        begin.close()
        end.close()

    def test_a_graph_does_its_work_at_each_launch(self, device, taken):
        stream, memory, source, result = taken
        with device.capture(stream) as capture:
            device.copy_out(result, memory, SIZE, stream)
        graph = capture.graph()
        for seed in (2, 3):
            source.array[:] = noise(seed)
            device.copy_in(memory, source, SIZE, stream)
            graph.launch(stream)
            stream.synchronize()
            assert np.array_equal(result.array, noise(seed))
        graph.close()
        graph.close()

    def test_a_stream_survives_what_cannot_be_recorded(self, device, taken):
        stream, memory, source, result = taken
        with pytest.raises(InferenceFailed), device.capture(stream):
            stream.synchronize()
        self.test_bytes_come_back_as_they_went(device, (stream, memory, source, result))

    def test_what_one_thread_took_another_uses_and_closes(self, device):
        seen: list[bool] = []
        with device.current():
            taken = [(device.stream(), device.alloc(SIZE), device.pinned(SIZE)) for _ in range(4)]

        def work(seed: int) -> None:
            stream, memory, pinned = taken[seed]
            with device.current():
                pinned.array[:] = noise(seed)
                device.copy_in(memory, pinned, SIZE, stream)
                stream.synchronize()
                pinned.array[:] = 0
                device.copy_out(pinned, memory, SIZE, stream)
                stream.synchronize()
                seen.append(np.array_equal(pinned.array, noise(seed)))
                for one in taken[seed]:
                    one.close()

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [True] * 4
