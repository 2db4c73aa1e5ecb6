"""Recordings of CUDA graphs and what synchronises the GPU keep out of each other's way."""

import threading

import numpy as np
from tests.engines.fake_device import fake_gpu
from tests.engines.fake_session import answer, engine, open_session, rows
from tests.engines.fake_stream import PATIENCE_S

from fovea_engines.backends.tensorrt.cuda.quiet import QUIET, Quiet


def test_any_number_records_or_synchronises_at_once():
    quiet = Quiet()
    with quiet.recording() as first, quiet.recording() as second:
        assert first
        assert second
    with quiet.synchronising(), quiet.synchronising(), quiet.recording() as third:
        assert not third
    with quiet.recording() as fourth:
        assert fourth


def test_what_synchronises_waits_for_recordings():
    quiet, begun = Quiet(), threading.Event()

    def load():
        with quiet.synchronising():
            begun.set()

    with quiet.recording():
        thread = threading.Thread(target=load)
        thread.start()
        assert not begun.is_set()
    thread.join(PATIENCE_S)
    assert begun.is_set()


def test_graphs_that_a_build_kept_back_are_recorded_as_batches_come(tmp_path):
    """A build takes minutes: a load does not wait for it, and serves kernel by kernel."""
    with fake_gpu() as device:
        made = engine(tmp_path, device, (1, 4, 8))
        with QUIET.synchronising():
            session = open_session(made, max_batch=8)
            x = rows(3)
            np.testing.assert_array_equal(session.infer({"x": x})["y"], answer(x))
            assert device.alive["graph"] == 0
        with session:
            for count in (1, 1, 2, 2, 4, 4, 8, 8):
                x = rows(count, count)
                np.testing.assert_array_equal(session.infer({"x": x})["y"], answer(x))
            assert device.alive["graph"] == 4 * 2
