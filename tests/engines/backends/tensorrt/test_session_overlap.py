"""Batches of different slots overlap, those of one slot never do."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.engines.fake_device import FakeDevice
from tests.engines.fake_session import answer, open_session, rows
from tests.engines.fake_stream import FakeStream

from fovea_preprocess.errors import InferenceFailed

PATIENCE_S = 20


@pytest.mark.parametrize("graphs", [True, False])
def test_two_batches_compute_at_once(made, device, graphs):
    both = threading.Barrier(2)
    with open_session(made, max_batch=8, graphs=graphs) as session:
        device.before = lambda operation, stream: operation == "execute" and both.wait(PATIENCE_S)
        with ThreadPoolExecutor(2) as pool:
            for x, found in pool.map(lambda x: (x, session.infer({"x": x})), [rows(3), rows(8)]):
                np.testing.assert_array_equal(found["y"], answer(x))


class Held:
    """Keeps the next batch that begins to compute from going on."""

    def __init__(self, device: FakeDevice) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.stream = 0
        device.before = self

    def __call__(self, operation: str, stream: FakeStream) -> None:
        if operation == "execute" and not self.begun.is_set():
            self.stream = stream.handle
            self.begun.set()
            assert self.go_on.wait(PATIENCE_S)


def test_all_of_a_batch_happens_while_another_computes(made, device):
    with open_session(made, max_batch=8) as session, ThreadPoolExecutor(1) as pool:
        device.trace.clear()
        hold = Held(device)
        held = pool.submit(session.infer, {"x": rows(8)})
        assert hold.begun.wait(PATIENCE_S)
        for count in (1, 2, 3):
            found = session.infer({"x": rows(count)})["y"]
            np.testing.assert_array_equal(found, answer(rows(count)))
        hold.go_on.set()
        np.testing.assert_array_equal(held.result()["y"], answer(rows(8)))
    order = [operation for operation, stream in device.trace if stream == hold.stream]
    assert order == ["copy_in", "execute", "copy_out"]
    of_held = [stream == hold.stream for _, stream in device.trace]
    assert of_held == [True] + [False] * 9 + [True] * 2


@pytest.mark.parametrize("slots", [1, 3])
def test_a_slot_has_one_owner_at_a_time(made, device, slots):
    with open_session(made, max_batch=8, slots=slots) as session:
        device.trace.clear()
        with ThreadPoolExecutor(8) as pool:
            batches = [rows(1 + i % 8, i) for i in range(200)]
            answers = pool.map(lambda x: session.infer({"x": x})["y"], batches)
            for x, y in zip(batches, answers, strict=True):
                np.testing.assert_array_equal(y, answer(x))
    streams = {stream for _, stream in device.trace}
    assert len(streams) == slots
    for each in streams:
        operations = [operation for operation, stream in device.trace if stream == each]
        assert operations == ["copy_in", "execute", "copy_out"] * (len(operations) // 3)


def test_nothing_is_made_or_set_up_once_it_is_loaded(made, device):
    """Contexts stay as they are: each batch is one copy in, one launch and one copy out."""
    with open_session(made, max_batch=8) as session:
        contexts = {id(context): context._changes for context in made.contexts}
        alive = dict(device.alive)
        for count in (1, 8, 2, 5, 1, 8):
            session.infer({"x": rows(count)})
        assert {id(context): context._changes for context in made.contexts} == contexts
        assert device.alive == alive


def test_ten_thousand_batches_from_eight_threads(made, device):
    with open_session(made, max_batch=12) as session:
        alive = dict(device.alive)

        def serve(seed: int) -> int:
            random = np.random.default_rng(seed)
            right = 0
            for _ in range(1250):
                x = random.random((random.integers(1, 13), 4), np.float32)
                y = session.infer({"x": x})["y"]
                right += np.array_equal(y, x * np.float32(2) + np.float32(1))
            return right

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(serve, range(8))) == 10_000
        assert device.alive == alive


def test_faults_of_some_batches_leave_the_others_right(made, device):
    with open_session(made, max_batch=8) as session:

        def serve(seed: int) -> tuple[int, int]:
            right = failed = 0
            for step in range(100):
                if step % 10 == seed:
                    device.fail("execute" if step % 20 == seed else "copy_out")
                x = rows(1 + (seed + step) % 8, step)
                try:
                    right += np.array_equal(session.infer({"x": x})["y"], answer(x))
                except InferenceFailed:
                    failed += 1
            return right, failed

        with ThreadPoolExecutor(8) as pool:
            right, failed = map(sum, zip(*pool.map(serve, range(8)), strict=True))
    assert right + failed == 800
    assert 0 < failed <= 80


def test_close_waits_for_calls_in_progress(made, device):
    session = open_session(made, max_batch=8, slots=1)
    hold = Held(device)
    with ThreadPoolExecutor(6) as pool:
        held = pool.submit(session.infer, {"x": rows(3)})
        assert hold.begun.wait(PATIENCE_S)
        waiting = [pool.submit(session.infer, {"x": rows(2)}) for _ in range(3)]
        closers = [pool.submit(session.close) for _ in range(2)]
        assert not device.closed
        hold.go_on.set()
        np.testing.assert_array_equal(held.result(PATIENCE_S)["y"], answer(rows(3)))
        for call in waiting:
            # Whether they come before the end is chance; but they are answered.
            if error := call.exception(PATIENCE_S):
                assert str(error) == "the session is closed; open the engine again"
            else:
                np.testing.assert_array_equal(call.result()["y"], answer(rows(2)))
        for closer in closers:
            closer.result(PATIENCE_S)
    assert device.closed


def test_a_call_that_is_overtaken_by_close_is_turned_away(made):
    begun, closed = threading.Event(), threading.Event()

    class SlowFeeds(dict):
        def __len__(self):
            begun.set()
            assert closed.wait(PATIENCE_S)
            return super().__len__()

    session = open_session(made, max_batch=8)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(session.infer, SlowFeeds(x=rows(1))) for _ in range(2)]
        assert begun.wait(PATIENCE_S)
        session.close()
        closed.set()
        for call in calls:
            with pytest.raises(InferenceFailed):
                call.result(PATIENCE_S)
