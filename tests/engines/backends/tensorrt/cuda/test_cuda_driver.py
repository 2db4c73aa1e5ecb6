"""What can be said of the device layer where there is no GPU."""

import ast
import threading
from importlib import resources

import numpy as np
import pytest
from tests.engines.fake_device import fake_gpu
from tests.engines.fake_session import answer, engine, open_session, rows
from tests.engines.fake_stream import PATIENCE_S

from fovea_engines.backends.tensorrt.cuda.driver import open_device
from fovea_engines.backends.tensorrt.cuda.quiet import QUIET, Quiet
from fovea_engines.backends.tensorrt.cuda.resources import Capture
from fovea_engines.device import Gpu
from fovea_preprocess.errors import BackendUnavailable


def test_without_a_gpu_the_reason_says_what_to_do():
    try:
        open_device().close()
    except BackendUnavailable as error:
        reason = str(error)
    else:
        pytest.skip("there is a GPU")
    assert any(advice in reason for advice in ("pip install", "driver", "nvidia-smi"))


class FakePycuda:
    """As much of `pycuda.driver` as a device asks for; its contexts count their users."""

    Error, MemoryError = RuntimeError, MemoryError

    def __init__(self):
        self.users = 0

    def init(self):
        pass

    def name(self):
        return "Fake GPU"

    def compute_capability(self):
        return 8, 9

    def retain_primary_context(self):
        self.users += 1
        return self

    def push(self):
        assert self.users, "the context is gone"

    def detach(self):
        self.users -= 1


def test_a_context_outlives_the_devices_that_use_it(monkeypatch):
    """pycuda and a GPU are not here: their calls are counted."""
    driver = FakePycuda()
    driver.Device = type("Device", (), {"__new__": lambda *_: driver, "count": lambda: 1})

    def call(name, *arguments):
        if name == "cuDevicePrimaryCtxRetain":
            driver.users += 1
        return 0

    module = "fovea_engines.backends.tensorrt.cuda.driver"
    monkeypatch.setattr(f"{module}._pycuda", lambda: driver)
    monkeypatch.setattr(f"{module}.gpu_here", lambda: Gpu("Fake GPU", "89"))
    monkeypatch.setattr(f"{module}.driver_call", call)
    monkeypatch.setattr(f"{module}._retained", set())
    for _ in range(3):
        with open_device() as first, open_device():
            assert first.name == "Fake GPU"
            assert driver.users == 3
        assert driver.users == 1


def test_a_graph_is_there_when_its_block_has_ended():
    with pytest.raises(RuntimeError, match="not recorded"):
        Capture().graph()


@pytest.mark.parametrize("file", ["resources.py", "driver.py"])
def test_every_function_of_the_driver_has_its_name_and_as_many_arguments(file):
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    text = (resources.files("fovea_engines.backends.tensorrt.cuda") / file).read_text(
        encoding="utf-8"
    )
    calls = [
        node.args
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "driver_call"
    ]
    assert calls
    for name, *arguments in calls:
        signature = getattr(driver, ast.literal_eval(name)).__doc__.partition(")")[0]
        wanted = [part for part in signature.partition("(")[2].split(",") if part.strip()]
        assert len(arguments) == len(wanted), signature


# Recordings of CUDA graphs and what synchronises the GPU keep out of each other's way.


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
