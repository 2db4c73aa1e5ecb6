"""What fails: one batch and not the next; and nothing is left behind."""

import logging

import numpy as np
import pytest
from tests.engines import fake_tensorrt
from tests.engines.fake_device import fake_gpu
from tests.engines.fake_session import LOAD_FAULTS, answer, engine, open_session, rows

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
        assert str(refused.value) == (
            "the engine needs 60.0 MB beside its weights, and Fake GPU has 50.0 MB of 50.0 MB "
            "free: 2 slots of 30.0 MB to compute in and 0.0 MB for inputs and outputs. What "
            "helps: a build with a --max-batch below 8, stopping what else uses the GPU"
        )
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
