"""TensorRT itself, where the stand-ins of the tests claim to know what it does."""

import threading
from contextlib import nullcontext

import pytest
from onnx import TensorProto, helper
from tests.engines.fake_session import save
from tests.engines.fake_stream import PATIENCE_S

from fovea_engines.backends.tensorrt.backend import ENGINE_FILE
from fovea_engines.backends.tensorrt.batch_context import Bucket, Contexts
from fovea_engines.backends.tensorrt.builder import build_plan
from fovea_engines.backends.tensorrt.cuda.quiet import QUIET, Quiet
from fovea_engines.backends.tensorrt.tensors import read_inputs
from fovea_engines.engine import Engine
from fovea_engines.repository.options import BuilderOptions, Profile
from fovea_preprocess.errors import InferenceFailed

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

TIMES = 20


@pytest.fixture
def load(runtime, device, tmp_path):
    """Loads an engine of two outputs, of which the network makes the second first."""
    shape = ["batch", 3, 8, 8]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xab"]
    nodes = [helper.make_node("Relu", ["x"], ["b"]), helper.make_node("Sigmoid", ["b"], ["a"])]
    graph = helper.make_graph(nodes, "two", ends[:1], ends[1:])
    model = save(tmp_path / "two.onnx", graph).read_bytes()
    plan = build_plan(model, BuilderOptions((Profile(1, 2, 4),)), runtime)
    with device.current():
        yield lambda: runtime.deserializer().deserialize_cuda_engine(plan.data)


def test_in_which_order_tensors_come(load, record_property):
    loaded = load()
    names = [loaded.get_tensor_name(index) for index in range(loaded.num_io_tensors)]
    record_property("of x, a and b", names)
    assert sorted(names) == ["a", "b", "x"]


def test_a_profile_that_is_not_there_raises(load, runtime, device):
    loaded = load()
    contexts = Contexts(loaded, read_inputs(loaded, batched=True), runtime.trt, None)
    stream = device.stream()
    contexts.make(Bucket(1, 0), stream)
    with pytest.raises(InferenceFailed, match="batches of 1"):
        contexts.make(Bucket(1, 9), stream)
    context = loaded.create_execution_context(contexts._runtime_config)
    with pytest.raises(RuntimeError, match="optimization profile"):
        context.set_optimization_profile_async(9, stream.handle)
    stream.synchronize()
    del context
    stream.close()


def test_what_the_inspector_says_with_and_without_a_context(load, runtime, record_property):
    loaded = load()
    kind = runtime.trt.LayerInformationFormat.JSON
    config = loaded.create_runtime_config()
    strategy = runtime.trt.ExecutionContextAllocationStrategy.USER_MANAGED
    config.set_execution_context_allocation_strategy(strategy)
    context = loaded.create_execution_context(config)
    inspector = loaded.create_engine_inspector()
    record_property("without", inspector.get_engine_information(kind)[:2000])
    assert context.set_input_shape("x", (2, 3, 8, 8)), "the first context has profile 0"
    inspector.execution_context = context
    said = inspector.get_engine_information(kind)
    record_property("with", said[:2000])
    if not runtime.ahead_of_time:
        assert "N/A due to dynamic shapes" not in said


@pytest.mark.parametrize("apart", [False, True])
def test_recordings_beside_loads(folder, runtime, device, apart, record_property):
    """Those that are kept apart never fail; what happens to the others is only told."""
    quiet = QUIET if apart else Quiet()  # nobody else looks at the other one
    plan = (folder / ENGINE_FILE).read_bytes()
    failed = {"loads": 0, "recordings": 0}
    ended = threading.Event()

    def load_again() -> None:
        try:
            with device.current():
                for _ in range(TIMES):
                    with quiet.synchronising() if apart else nullcontext():
                        loaded = runtime.deserializer().deserialize_cuda_engine(plan)
                        failed["loads"] += loaded is None
                        del loaded
        finally:
            ended.set()

    thread = threading.Thread(target=load_again, daemon=True)
    recorded = 0
    with Engine.open(folder) as engine, engine.session._slot() as slot:
        lane = next(iter(slot._lanes.values()))
        thread.start()
        while recorded < TIMES or not ended.is_set():
            with quiet.recording() as free:
                if free:
                    recorded += 1
                    try:
                        with engine.session._device.capture(slot._stream) as capture:
                            lane._execute()
                        capture.graph().close()
                    except InferenceFailed:
                        failed["recordings"] += 1
            if not free:
                ended.wait(0.01)
        thread.join(PATIENCE_S)
    record_property("failed", failed)
    record_property("recordings", recorded)
    if apart:
        assert failed == {"loads": 0, "recordings": 0}
