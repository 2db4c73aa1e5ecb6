"""Sessions on a GPU, with a kernel of ours in TensorRT's place: slots, lanes, graphs, faults."""

import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.engines.fake_session import answer
from tests.gpu.affine import PATIENCE_S
from tests.gpu.kernel_engine import KernelEngine, open_session

from fovea_engines.backends.tensorrt.session import TensorRTSession
from fovea_preprocess.errors import InferenceFailed, OutOfMemory

pytestmark = pytest.mark.real

GRAPHS = pytest.mark.parametrize("graphs", [True, False])
THREADS = 8


def rows(count: int, seed: int = 0, columns: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).random((count, columns), np.float32)


def check(session: TensorRTSession, x: np.ndarray) -> None:
    """A batch is answered rightly."""
    np.testing.assert_array_equal(session.infer({"x": x})["y"], answer(x), strict=True)


def served(session: TensorRTSession) -> None:
    """Every batch size in every slot is answered rightly."""
    _, columns = session.inputs[0].shape
    for count in range(1, session.max_batch + 1):
        for seed in range(session.concurrency):  # slots take turns
            check(session, rows(count, seed, columns))


def free(device) -> int:
    with device.current():
        return device.memory()[0]


@pytest.fixture
def make(device) -> Iterator[Callable[..., KernelEngine]]:
    """Makes engines that are closed in the end."""
    made = []

    def make(*batches: tuple[int, int, int], **options: int) -> KernelEngine:
        made.append(KernelEngine(device, *batches, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def engine(make) -> KernelEngine:
    return make((1, 4, 8))


@GRAPHS
def test_every_batch_is_padded_to_a_bucket(engine, graphs):
    with open_session(engine, graphs=graphs) as session:
        assert (session.max_batch, session.concurrency) == (8, 2)
        engine.runs.clear()
        for count in range(1, 9):
            check(session, rows(count, count))
    # A graph runs without the engine being asked.
    expected = [] if graphs else [(1, 0), (2, 0), (4, 0), (4, 0), *[(8, 0)] * 4]
    assert engine.runs == expected


@GRAPHS
def test_large_batches_are_split(engine, graphs):
    with open_session(engine, max_batch=19, graphs=graphs) as session:
        engine.runs.clear()
        check(session, rows(19))
    assert engine.runs == ([] if graphs else [(8, 0), (8, 0), (4, 0)])


@GRAPHS
def test_the_profile_that_suits_a_batch_best_runs_it(make, graphs):
    engine = make((1, 1, 8), (2, 8, 16))
    with open_session(engine, max_batch=16, slots=1, graphs=graphs) as session:
        engine.runs.clear()
        for count in (1, 16, 2, 8, 1):
            check(session, rows(count))
    assert engine.runs == ([] if graphs else [(1, 0), (16, 1), (2, 0), (8, 1), (1, 0)])


@GRAPHS
@pytest.mark.parametrize("others", [1, 3])
def test_batches_come_and_go_while_another_computes(engine, graphs, others):
    with open_session(engine, graphs=graphs) as session, ThreadPoolExecutor(1) as pool:
        served(session)
        engine.kernel.hold(others)
        held = pool.submit(session.infer, {"x": rows(8)})
        engine.kernel.wait_for_a_batch()
        for seed in range(others):
            check(session, rows(3, 1 + seed))
        np.testing.assert_array_equal(held.result(PATIENCE_S)["y"], answer(rows(8)))


@GRAPHS
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize(("columns", "batches"), [(4, 1000), (1 << 16, 100)])
def test_thousands_of_batches_from_eight_threads(device, make, graphs, slots, columns, batches):
    engine = make((1, 4, 8), columns=columns)
    with open_session(engine, max_batch=12, slots=slots, graphs=graphs) as session:
        served(session)
        before = free(device)

        def serve(seed: int) -> int:
            random, right = np.random.default_rng(seed), 0
            for _ in range(batches):
                x = random.random((random.integers(1, 13), columns), np.float32)
                right += np.array_equal(session.infer({"x": x})["y"], answer(x))
            return right

        with ThreadPoolExecutor(THREADS) as pool:
            assert sum(pool.map(serve, range(THREADS))) == THREADS * batches
        assert free(device) >= before


def test_a_refusal_fails_its_batch_alone(engine):
    with open_session(engine, graphs=False) as session:
        served(session)
        # Each context that refused is made anew, which takes a run more.
        engine.refusals = iter([step % 10 == 0 for step in range(400)])

        refused = []

        def serve(seed: int) -> int:
            right = 0
            for step in range(100):
                x = rows(1 + (seed + step) % 8, step)
                try:
                    right += np.array_equal(session.infer({"x": x})["y"], answer(x))
                except InferenceFailed as error:
                    refused.append(str(error))
            return right

        with ThreadPoolExecutor(THREADS) as pool:
            right = sum(pool.map(serve, range(THREADS)))
        assert refused == ["TensorRT could not run this batch; see the log"] * 40
        assert right == THREADS * 100 - 40
        served(session)


@pytest.mark.parametrize("reason", ["refused", "not recordable"])
def test_without_graphs_where_they_cannot_be_recorded(engine, caplog, reason):
    if reason == "refused":  # after all contexts have run; between the two tries it runs plainly
        engine.refusals = iter([False] * 8 + [True, False, True])
    else:
        engine.recordable = False
    with caplog.at_level(logging.WARNING), open_session(engine) as session:
        engine.runs.clear()
        served(session)
        assert engine.runs
    assert ["without CUDA graphs" in record.message for record in caplog.records] == [True]


@GRAPHS
def test_close_waits_for_the_batch_that_computes(engine, graphs):
    session = open_session(engine, slots=1, graphs=graphs)
    served(session)
    engine.kernel.hold(1)
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(session.infer, {"x": rows(3)})
        engine.kernel.wait_for_a_batch()
        closing = pool.submit(session.close)
        assert not closing.done()
        engine.kernel.let_go()
        np.testing.assert_array_equal(held.result(PATIENCE_S)["y"], answer(rows(3)))
        closing.result(PATIENCE_S)
    session.close()
    with pytest.raises(InferenceFailed, match="the session is closed"):
        session.infer({"x": rows(1)})


@GRAPHS
def test_close_under_load_leaves_every_answer_right(engine, graphs):
    session = open_session(engine, graphs=graphs)
    all_are_at_it = threading.Barrier(THREADS + 1)

    def serve(seed: int) -> str:
        step = 0
        while True:
            if step == 10:
                all_are_at_it.wait(PATIENCE_S)
            x = rows(1 + (seed + step) % 8, step)
            try:
                found = session.infer({"x": x})["y"]
            except InferenceFailed as error:
                return str(error)
            np.testing.assert_array_equal(found, answer(x))
            step += 1

    with ThreadPoolExecutor(THREADS) as pool:
        calls = [pool.submit(serve, seed) for seed in range(THREADS)]
        all_are_at_it.wait(PATIENCE_S)
        session.close()
        ends = {call.result(PATIENCE_S) for call in calls}
    assert ends == {"the session is closed; open the engine again"}


def test_memory_is_given_back_whether_a_load_fails_or_a_session_ends(device, engine):
    # What a first session leaves behind stays with the process: the driver's own.
    open_session(engine).close()
    before = free(device)
    for refused in (0, 1, 10):
        engine.refusals = iter([False] * refused + [True])
        with pytest.raises(InferenceFailed, match="could not run"):
            open_session(engine, graphs=False, slots=3)
        engine.refusals = iter(())
        with open_session(engine) as session:
            served(session)
        assert free(device) >= before


def test_an_engine_that_does_not_fit_is_refused_with_figures(device, engine):
    small = engine.device_memory_size_v2
    with device.current():
        _, engine.device_memory_size_v2 = device.memory()
    with pytest.raises(OutOfMemory, match=rf"{re.escape(device.name)} has .* free: 2 slots of"):
        open_session(engine)
    engine.device_memory_size_v2 = small
    with open_session(engine) as session:
        served(session)


# In a process of its own, as the GPU does not answer it any more.
CRASH = """
from tests.gpu.kernel_engine import KernelEngine, open_session
import numpy as np, pytest
from fovea_engines.backends.tensorrt.cuda.driver import open_device
from fovea_preprocess.errors import DeviceLost
device = open_device()
engine = KernelEngine(device, (1, 4, 8))
session = open_session(engine, graphs={graphs})
x = np.ones((3, 4), np.float32)
assert (session.infer({{"x": x}})["y"] == 3).all()
engine.kernel.crash()
for _ in range(3):
    with pytest.raises(DeviceLost, match="no longer responds"):
        session.infer({{"x": x}})
session.close()
print("closed")
"""


@GRAPHS
def test_a_gpu_that_crashed_is_told_and_let_go_of(device, graphs):
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", CRASH.format(graphs=graphs)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "closed" in ended.stdout, ended.stderr
