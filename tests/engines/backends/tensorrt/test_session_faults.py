"""What fails: one batch and not the next; and nothing is left behind."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.engines import fake_tensorrt
from tests.engines.fake_device import FakeDevice, fake_gpu
from tests.engines.fake_session import LOAD_FAULTS, answer, engine, open_session, rows
from tests.engines.fake_stream import FakeStream

from fovea_engines.backends.tensorrt.session import TensorRTSession
from fovea_preprocess.errors import DeviceLost, InferenceFailed, OutOfMemory


def served(session: TensorRTSession) -> None:
    """Every batch size in every slot is answered rightly."""
    for count in (*range(1, 9), *range(1, 9)):
        x = rows(count, count)
        np.testing.assert_array_equal(session.infer({"x": x})["y"], answer(x))


FAULTS = [
    ("copy_in", "enqueue", True),
    ("copy_in", "run", True),
    ("launch", "enqueue", True),
    ("execute", "run", True),
    ("refuse", "enqueue", False),
    ("execute", "run", False),
    ("copy_out", "enqueue", True),
    ("copy_out", "run", True),
]


@pytest.mark.parametrize(("operation", "when", "graphs"), FAULTS)
def test_a_fault_ends_one_batch(made, device, operation, when, graphs):
    with open_session(made, max_batch=8, graphs=graphs) as session:
        alive, contexts = dict(device.alive), len(made.contexts)
        for _ in range(3):
            device.fail(operation, when)
            with pytest.raises(InferenceFailed) as failed:
                session.infer({"x": rows(3)})
            assert len(made.contexts) == contexts - 1, failed
            served(session)
        assert device.alive == alive
        assert len(made.contexts) == contexts


def test_a_context_that_failed_is_made_anew_as_soon_as_it_can_be(made, device):
    with open_session(made, max_batch=8, slots=1) as session:
        device.fail("launch", "enqueue")
        with pytest.raises(InferenceFailed):
            session.infer({"x": rows(2)})
        device.fail("context", "enqueue", times=2)
        for _ in range(2):
            with pytest.raises(InferenceFailed, match="batches of 2"):
                session.infer({"x": rows(2)})
            np.testing.assert_array_equal(session.infer({"x": rows(4)})["y"], answer(rows(4)))
        served(session)


def test_a_part_that_fails_fails_the_batch_it_was_split_from(made, device):
    with open_session(made, max_batch=20) as session:
        device.fail("copy_out", after=1)
        with pytest.raises(InferenceFailed):
            session.infer({"x": rows(20)})
        np.testing.assert_array_equal(session.infer({"x": rows(20)})["y"], answer(rows(20)))


@pytest.mark.parametrize("reason", ["no capture", "not recordable"])
def test_without_graphs_where_they_cannot_be_captured(made, device, caplog, reason):
    made.recordable = reason == "no capture"
    device.fail("capture", "enqueue", times=0 if made.recordable is False else 2)
    with caplog.at_level(logging.WARNING), open_session(made, max_batch=8) as session:
        assert device.alive["graph"] == 0
        served(session)
        device.fail("execute")
        with pytest.raises(InferenceFailed):
            session.infer({"x": rows(1)})
        served(session)
        assert device.alive["graph"] == 0
    assert [r.levelname for r in caplog.records if "CUDA graphs" in r.message] == ["WARNING"]
    assert len(made.contexts) == 0


@pytest.mark.parametrize("refused", [0, 3, 7])
def test_a_recording_that_was_refused_once_is_tried_again(made, device, caplog, refused):
    device.fail("capture", "enqueue", after=refused)
    with caplog.at_level(logging.WARNING), open_session(made, max_batch=8) as session:
        assert device.alive["graph"] == 4 * 2
        served(session)
    assert caplog.records == []


def test_there_is_a_graph_for_every_bucket_of_every_slot(made, device):
    with open_session(made, max_batch=8, slots=3):
        assert device.alive["graph"] == len(made.contexts) == 4 * 3


@pytest.mark.parametrize(("operation", "when", "after"), LOAD_FAULTS)
def test_a_load_that_fails_leaves_nothing(made, device, operation, when, after):
    """At the first such step, or where some contexts and graphs are there already."""
    device.fail(operation, when, after, times=3)
    with pytest.raises(InferenceFailed):
        open_session(made, max_batch=8)
    assert not device.closed
    assert +device.alive == {}
    assert len(made.contexts) == 0


def test_an_engine_that_does_not_fit_is_refused_before_anything_is_taken(tmp_path):
    with fake_gpu(total=50_000_000) as device:
        made = engine(tmp_path, device, (1, 4, 8), workspace=30_000_000)
        with pytest.raises(OutOfMemory) as refused:
            open_session(made, max_batch=8)
        figures = ("60.0 MB", "50.0 MB of 50.0 MB free", "2 slots of 30.0 MB", "below 8")
        assert all(each in str(refused.value) for each in figures)
        with open_session(made, max_batch=8, slots=1) as session:
            served(session)


def test_memory_is_taken_at_load_and_given_back_at_close(made, device):
    session = open_session(made, max_batch=8)
    with device.current():
        free, total = device.memory()
    taken = total - free
    assert taken == 2 * (made.device_memory_size_v2 + 2 * rows(8).nbytes)
    served(session)
    with device.current():
        assert device.memory() == (free, total)
    session.close()
    assert device.closed
    assert +device.alive == {}
    assert len(made.contexts) == 0


def test_closing_again_does_nothing_and_a_closed_session_says_so(made):
    session = open_session(made, max_batch=8)
    session.close()
    session.close()
    with pytest.raises(InferenceFailed):
        session.infer({"x": rows(1)})


def test_contexts_compute_in_memory_that_the_session_gives_them(made):
    config = made.create_runtime_config()
    with TensorRTSession(
        made.load(), made.device, fake_tensorrt, max_batch=8, runtime_config=config
    ):
        assert config.strategy is fake_tensorrt.ExecutionContextAllocationStrategy.USER_MANAGED


@pytest.mark.parametrize("graphs", [True, False])
def test_a_device_that_crashed_is_lost_and_told_so(made, device, graphs):
    session = open_session(made, max_batch=8, graphs=graphs)
    served(session)
    device.crash()
    for _ in range(2):
        with pytest.raises(DeviceLost):
            session.infer({"x": rows(3)})
    session.close()
    assert not made.contexts


# Batches of different slots overlap, those of one slot never do.


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
