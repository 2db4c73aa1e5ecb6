"""TensorRT for RTX builds what Fovea asks for, says what it refuses, and stops when told to."""

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.engines.rtx import trt
from tests.engines.tiny import constant

from fovea_engines.backends.installing import install_extra
from fovea_engines.backends.tensorrt.builder import _failure, build_plan
from fovea_engines.backends.tensorrt.runtime import RTX, TENSORRT, load_runtime
from fovea_engines.progress import Progress
from fovea_engines.repository.options import BuilderOptions, Profile
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import (
    BackendUnavailable,
    BuildError,
    InvalidModel,
    InvalidOption,
    UnsupportedModel,
)

SQUARE = ["batch", 3, 8, 8]
# With it TensorRT ends, whatever the reason is that each kernel was left out for.
NONE = "Could not find any implementation for node /model.0/conv/Conv."


@pytest.fixture(scope="module")
def runtime():
    return load_runtime(RTX)


def model(*nodes, takes=SQUARE, gives=SQUARE, dtype=TensorProto.FLOAT, weights=()) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", dtype, takes)],
        [helper.make_tensor_value_info("y", dtype, gives)],
        list(weights),
    )
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


RELU = model(helper.make_node("Relu", ["x"], ["y"], "relu"))
# Long enough to be stopped: each of its layers is a kernel of its own.
POOLS = model(
    *(
        helper.make_node(
            "MaxPool",
            [f"x{n}" if n else "x"],
            [f"x{n + 1}" if n < 39 else "y"],
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
        )
        for n in range(40)
    )
)


def for_two(*profiles: Profile, **options) -> BuilderOptions:
    return BuilderOptions(profiles or (Profile(1, 1, 4),), capabilities=("80", "89"), **options)


def test_a_plan_says_what_it_takes(runtime):
    with runtime.log.collect() as warnings:
        [layer] = build_plan(RELU, for_two(), runtime).layers.layers
    assert layer.inputs == (TensorSpec("x", "float32", (-1, 3, 8, 8)),)
    assert layer.outputs == (TensorSpec("y", "float32", (-1, 3, 8, 8)),)
    assert (layer.name, layer.type) == ("relu", "activation")
    assert warnings == []


def test_every_profile_is_in_the_plan(runtime):
    """As far as can be seen without a GPU: each adds a compiled graph of its own."""
    one = build_plan(RELU, for_two(Profile(1, 1, 4)), runtime)
    two = build_plan(RELU, for_two(Profile(1, 1, 4), Profile(5, 8, 8)), runtime)
    assert two.data.count(b"ForeignNode") > one.data.count(b"ForeignNode") > 0


def test_a_fixed_batch_needs_no_profile(runtime):
    fixed = model(helper.make_node("Relu", ["x"], ["y"]), takes=[2, 3, 8, 8], gives=[2, 3, 8, 8])
    [layer] = build_plan(fixed, for_two(Profile(2, 2, 2)), runtime).layers.layers
    assert layer.inputs[0].shape == (2, 3, 8, 8)
    with pytest.raises(InvalidOption, match="1,4,8"):
        build_plan(fixed, for_two(Profile(1, 4, 8)), runtime)


def test_other_dynamic_sizes_are_refused(runtime):
    shape = ["batch", 3, "h", "w"]
    dynamic = model(helper.make_node("Relu", ["x"], ["y"]), takes=shape, gives=shape)
    with pytest.raises(UnsupportedModel, match="--size 640x640"):
        build_plan(dynamic, for_two(), runtime)


def test_workspace_and_level_reach_tensorrt(runtime, monkeypatch):
    seen = []
    build = trt.Builder.build_serialized_network

    def spy(builder, network, config):
        pool = config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE)
        seen.append((pool, config.builder_optimization_level, config.profiling_verbosity))
        return build(builder, network, config)

    monkeypatch.setattr(trt.Builder, "build_serialized_network", spy)
    build_plan(RELU, for_two(workspace=1 << 20, level=5), runtime)
    assert seen == [(1 << 20, 5, trt.ProfilingVerbosity.DETAILED)]


def test_rtx_is_not_asked_for_timings(runtime, tmp_path):
    """It would warn: it times nothing."""
    build_plan(RELU, for_two(), runtime, timings=tmp_path / "timings")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options", [{"level": 6}, {"level": -1}, {"workspace": 0}, {"profiles": ()}]
)
def test_options_have_ranges(options):
    with pytest.raises(InvalidOption, match=r"must be|give one"):
        BuilderOptions(**options)


def test_the_largest_batch_is_that_of_all_profiles():
    assert BuilderOptions((Profile(1, 1, 4), Profile(5, 8, 16), Profile(1, 1, 1))).max_batch == 16


REFUSED = {
    "an operator without an importer": (
        model(helper.make_node("Det", ["x"], ["y"], "det"), takes=[2, 4, 4], gives=[2]),
        r"node 'det' \(Det\): TensorRT does not support this operator",
    ),
    "an operator of someone's own": (
        model(helper.make_node("Foo", ["x"], ["y"], "foo", domain="mine")),
        r"node 'foo' \(Foo\): .*Plugin not found.* --plugin LIB\.so",
    ),
    "a node without a name": (
        model(helper.make_node("Det", ["x"], ["y"]), takes=[2, 4, 4], gives=[2]),
        r"node 'number 0' \(Det\)",
    ),
    "a plugin that RTX lacks": (
        model(helper.make_node("NonZero", ["x"], ["y"], "nz"), gives=[4, "n"]),
        r"node 'nz' \(NonZero\)",
    ),
    "arithmetic in uint8": (
        model(helper.make_node("Add", ["x", "x"], ["y"], "add"), dtype=TensorProto.UINT8),
        r"node 'add' \(Add\): .*UInt8.* --precision int8",
    ),
    "strings": (
        model(helper.make_node("Identity", ["x"], ["y"]), dtype=TensorProto.STRING),
        r"the model: .*export it in float32",
    ),
    "several operators": (
        model(
            helper.make_node("Unique", ["x"], ["u"], "unique"),
            helper.make_node("Det", ["u"], ["y"], "det"),
            takes=[4, 4],
            gives=[1],
        ),
        r"node 'unique' \(Unique\).*also does not support Det",
    ),
    "two types": (
        model(
            helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
            helper.make_node("Add", ["x", "h"], ["y"], "add"),
        ),
        r"node 'add' \(Add\): .*insert a Cast",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_refusal_names_node_and_operator_and_what_to_do(runtime, case):
    data, says = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=says) as refused:
        build_plan(data, for_two(), runtime)
    # Without a driver TensorRT says so at every turn; it is not what is wrong.
    assert "cudaError" not in str(refused.value)


def test_what_parses_and_cannot_be_built_is_told(runtime):
    nodes = [helper.make_node("NonMaxSuppression", ["x", "s", "k"], ["y"], "nms")]
    weights = [constant("s", np.ones((1, 2, 100), np.float32)), constant("k", np.array([10]))]
    data = model(*nodes, takes=[1, 100, 4], gives=["n", 3], weights=weights)
    proto = onnx.load_from_string(data)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(UnsupportedModel):
        build_plan(proto.SerializeToString(), for_two(Profile(1, 1, 1)), runtime)


@pytest.mark.parametrize(
    ("messages", "kind", "says"),
    [
        (
            [
                "Tactic Device request: 3000MB Available: 900MB. Device memory is insufficient.",
                NONE,
            ],
            BuildError,
            "smaller --workspace",
        ),
        (["CUDA error 2: out of memory (cudaMalloc)", NONE], BuildError, "smaller --workspace"),
        (["OutOfMemory Error in requestTrtMemory", NONE], BuildError, "smaller --workspace"),
        ([NONE], UnsupportedModel, "TensorRT has no kernel for a part of the model"),
        ([], BuildError, "failed to build the engine: no reason given"),
    ],
)
def test_memory_that_is_short_is_told_before_what_follows_from_it(messages, kind, says):
    failure = _failure(messages)
    assert type(failure) is kind
    assert says in str(failure)


@pytest.mark.parametrize("data", [b"", b"no model at all"])
def test_bytes_that_are_no_model(runtime, data):
    with pytest.raises(InvalidModel):
        build_plan(data, for_two(), runtime)


class Watcher(Progress):
    """Does something when the first phase is told."""

    def __init__(self, act):
        super().__init__()
        self.told = []
        self._act = act

    def now(self, text):
        self.told.append(text)
        if len(self.told) == 1:
            self._act()


def test_phases_are_told_while_it_builds(runtime):
    progress = Watcher(lambda: None)
    build_plan(RELU, for_two(), runtime, progress)
    assert progress.told[0] == "Building engine 0/6"
    assert progress.told[-1] == ""
    assert any(re.match(r"Computing profile costs \d/\d: \w", text) for text in progress.told)
    assert not any("%" in text for text in progress.told)


def interrupted() -> None:
    """A real signal, while TensorRT is at work in its thread."""
    runtime = load_runtime(RTX)
    here = threading.get_ident()

    def interrupt():
        signal.pthread_kill(here, signal.SIGINT)
        # Not before this thread has heard of it.
        stopped.wait(60)

    stopped = threading.Event()
    progress = Watcher(interrupt)

    def heard(number, frame):
        stopped.set()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, heard)
    with runtime.log.collect() as messages, pytest.raises(KeyboardInterrupt):
        build_plan(POOLS, for_two(), runtime, progress)
    # Every phase has ended.
    assert progress.told[-1] == ""
    assert "stopping after this step" in progress.told
    assert any("BuildCanceled" in message for message in messages)
    assert build_plan(RELU, for_two(), runtime).data


def test_ctrl_c_stops_a_build():
    """In a process of its own, which a signal that comes late may end."""
    code = "from tests.engines.backends.tensorrt.test_builder import interrupted; interrupted()"
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[4]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_backend_that_is_not_installed_says_how(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", None)
    with pytest.raises(BackendUnavailable, match=re.escape(install_extra("tensorrt"))):
        load_runtime(TENSORRT)


def test_there_is_one_runtime(runtime):
    assert load_runtime(RTX) is runtime


def test_what_is_collected_is_logged_too_but_not_to_a_bare_terminal(runtime, caplog, capfd):
    with runtime.log.collect() as outer, runtime.log.collect() as inner:
        runtime.log.write("said")
    assert outer == inner == ["said"]
    assert caplog.messages == ["said"]
    assert capfd.readouterr().err == ""
    caplog.clear()
    assert runtime.trt.Runtime(runtime.logger).deserialize_cuda_engine(b"no plan") is None
    assert {record.levelname for record in caplog.records} == {"ERROR"}
    assert inner == ["said"]


def test_a_plan_that_cannot_be_loaded_is_told_beforehand(runtime):
    assert "malformed engine" in runtime.rejection(b"no plan" * 100)


# The batches that an engine is made for, as they are typed.


@pytest.mark.parametrize("text", ["1,4,8", " 1, 4 ,8 "])
def test_a_profile_is_read(text):
    assert Profile.parse(text) == Profile(1, 4, 8)
    assert str(Profile.parse(text)) == "1,4,8"


@pytest.mark.parametrize(
    "text",
    ["", "4", "1,4", "1,4,8,16", "1;4;8", "a,b,c", "1,4,", "-1,4,8", "1.5,2,3", "0,1,2", "4,1,8"],
)
def test_what_is_no_profile_is_refused(text):
    with pytest.raises(InvalidOption):
        Profile.parse(text)
