"""A session of TensorRT gives the right rows, whatever the batch and the profiles are."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.engines.fake_session import COLUMNS, answer, engine, model, open_session, rows, save
from tests.engines.fake_tensorrt import (
    DataType,
    FakeContext,
    FakeEngine,
    FakeLoaded,
    FakeRuntimeConfig,
    TensorFormat,
    TensorLocation,
)

from fovea_engines.backends.tensorrt.batch_context import Bucket, choose_buckets
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.repository.options import Profile
from fovea_preprocess.errors import InferenceFailed, UnsupportedModel

pytestmark = pytest.mark.real


@pytest.mark.parametrize("graphs", [True, False])
def test_every_batch_is_padded_to_a_bucket(tmp_path, device, graphs):
    made = engine(tmp_path, device, (1, 4, 8))
    with open_session(made, max_batch=8, graphs=graphs) as session:
        assert (session.max_batch, session.concurrency) == (8, 2)
        assert session.inputs[0].shape == session.outputs[0].shape == (-1, COLUMNS)
        made.runs.clear()
        for count in range(1, 9):
            x = rows(count, count)
            y = session.infer({"x": x})["y"]
            assert y.flags.owndata
            np.testing.assert_array_equal(y, answer(x))
        assert [run[1] for run in made.runs] == [1, 2, 4, 4, 8, 8, 8, 8]


def test_rows_beyond_a_batch_are_those_of_an_earlier_one_or_zero(tmp_path, device):
    """So that no input is ever computed on that nobody sent, such as an index out of range."""
    made = engine(tmp_path, device, (4, 4, 4))
    with open_session(made, max_batch=4, slots=1) as session:
        seen = []
        compute = made.session.run

        class Watching:
            def run(self, names, feeds):
                seen.append(feeds["x"].copy())
                return compute(names, feeds)

        made.session = Watching()
        session.infer({"x": np.full((3, COLUMNS), 7, np.float32)})
        session.infer({"x": np.full((1, COLUMNS), 8, np.float32)})
    assert seen[0][:, 0].tolist() == [7, 7, 7, 0]
    assert seen[1][:, 0].tolist() == [8, 7, 7, 0]


def test_only_the_rows_of_a_batch_are_copied(tmp_path, device):
    with open_session(engine(tmp_path, device, (1, 4, 8)), max_batch=8) as session:
        device.copied.clear()
        session.infer({"x": rows(5)})
    assert device.copied == {"in": rows(5).nbytes, "out": rows(5).nbytes}


def test_large_batches_are_split(tmp_path, device):
    made = engine(tmp_path, device, (1, 2, 4))
    with open_session(made, max_batch=11) as session:
        made.runs.clear()
        x = rows(11)
        np.testing.assert_array_equal(session.infer({"x": x})["y"], answer(x))
        assert [run[1] for run in made.runs] == [4, 4, 4]


def test_the_profile_that_suits_a_batch_best_runs_it(tmp_path, device):
    made = engine(tmp_path, device, (1, 1, 8), (2, 8, 16))
    with open_session(made, max_batch=16, slots=1) as session:
        contexts = set(map(id, made.contexts))
        made.runs.clear()
        for count in (1, 16, 2, 8, 1):
            x = rows(count)
            np.testing.assert_array_equal(session.infer({"x": x})["y"], answer(x))
        assert [run[1:] for run in made.runs] == [(1, 0), (16, 1), (2, 0), (8, 1), (1, 0)]
        assert set(map(id, made.contexts)) == contexts


@pytest.mark.parametrize(
    ("profiles", "max_batch", "buckets"),
    [
        ({0: Profile(1, 4, 8)}, 8, [(1, 0), (2, 0), (4, 0), (8, 0)]),
        ({0: Profile(1, 4, 8)}, 3, [(1, 0), (2, 0), (3, 0)]),
        ({0: Profile(1, 1, 1)}, 8, [(1, 0)]),
        ({0: Profile(8, 8, 8)}, 2, [(8, 0)]),
        ({0: Profile(3, 6, 7)}, 7, [(3, 0), (4, 0), (6, 0), (7, 0)]),
        ({0: Profile(1, 1, 1), 2: Profile(8, 8, 16)}, 4, [(1, 0), (8, 2)]),
        ({0: Profile(1, 1, 4), 1: Profile(1, 4, 4)}, 4, [(1, 0), (2, 0), (4, 1)]),
    ],
)
def test_buckets(profiles, max_batch, buckets):
    assert choose_buckets(profiles, max_batch) == tuple(Bucket(*bucket) for bucket in buckets)


def test_an_engine_of_a_fixed_batch_takes_fewer_and_more_rows(tmp_path, device):
    made = FakeEngine(model(tmp_path / "m.onnx", [4, COLUMNS]), device)
    with open_session(made, max_batch=6) as session:
        for count in (1, 4, 6):
            x = rows(count)
            np.testing.assert_array_equal(session.infer({"x": x})["y"], answer(x))


@pytest.mark.parametrize("shape", [[COLUMNS], [2, 3], []])
def test_an_engine_without_a_batch_dimension(tmp_path, device, shape):
    made = FakeEngine(model(tmp_path / "m.onnx", shape), device)
    with open_session(made, max_batch=0) as session:
        assert session.max_batch == 0
        assert session.inputs[0].shape == tuple(shape)
        x = np.full(shape, 3, np.float32)
        y = session.infer({"x": x})["y"]
        assert isinstance(y, np.ndarray)
        np.testing.assert_array_equal(y, answer(x), strict=True)


def test_what_else_is_dynamic_is_held_at_its_optimum(tmp_path, device):
    """As in engines that Ultralytics exports with dynamic=True."""
    path = model(tmp_path / "m.onnx", ["batch", "height", "width"])
    small = {"x": ((1, 8, 8), (2, 32, 48), (4, 64, 64))}
    large = {"x": ((1, 64, 64), (8, 128, 128), (8, 256, 256))}
    made = FakeEngine(path, device, [small, large])
    with open_session(made, max_batch=8) as session:
        assert session.inputs[0].shape == session.outputs[0].shape == (-1, 32, 48)
        x = np.random.default_rng(0).random((7, 32, 48), np.float32)
        np.testing.assert_array_equal(session.infer({"x": x})["y"], answer(x))
    assert {profile for _, _, profile in made.runs} == {0}


ELEMENTS = ("float32", "float16", "uint8", "int8", "int32", "int64", "bool")


def test_every_type_that_numpy_has(tmp_path, device):
    kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in ELEMENTS]
    nodes = [helper.make_node("Identity", [f"in_{n}"], [f"out_{n}"]) for n in ELEMENTS]
    inputs, outputs = (
        [
            helper.make_tensor_value_info(f"{end}_{name}", kind, [2, 3])
            for name, kind in zip(ELEMENTS, kinds, strict=True)
        ]
        for end in ("in", "out")
    )
    path = save(tmp_path / "m.onnx", helper.make_graph(nodes, "all", inputs, outputs))
    feeds = {f"in_{name}": np.array([[0, 1, 1], [1, 0, 1]], name) for name in ELEMENTS}
    with open_session(FakeEngine(path, device), max_batch=2) as session:
        # An `Engine` has them in the model's order.
        assert [spec.dtype for spec in session.inputs] == list(ELEMENTS)[::-1]
        found = session.infer(feeds)
    for name in ELEMENTS:
        np.testing.assert_array_equal(found[f"out_{name}"], feeds[f"in_{name}"], strict=True)


@pytest.mark.parametrize(
    ("feeds", "says"),
    [
        ({}, "input 'x' is missing"),
        ({"x": rows(1), "z": rows(1)}, "no input 'z'"),
        ({"x": rows(1).astype(np.float64)}, "must be float32"),
        ({"x": rows(1)[:, :2]}, "has shape"),
        ({"x": rows(9)}, "from 1 to 8"),
    ],
)
def test_wrong_feeds_are_told_as_every_backend_tells_them(tmp_path, device, feeds, says):
    with open_session(engine(tmp_path, device, (1, 4, 8)), max_batch=8) as session:
        with pytest.raises(InferenceFailed, match=says):
            session.infer(feeds)
        np.testing.assert_array_equal(session.infer({"x": rows(1)})["y"], answer(rows(1)))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("types", DataType.BF16, "is bfloat16"),
        ("locations", TensorLocation.HOST, "reads on the CPU"),
        ("formats", TensorFormat.CHW16, "is not in row-major order"),
    ],
)
def test_an_engine_that_cannot_be_served_is_refused(tmp_path, device, field, value, says):
    made = engine(tmp_path, device, (1, 4, 8))
    getattr(made, field)["y"] = value
    with pytest.raises(UnsupportedModel, match=says):
        open_session(made, max_batch=8)


def test_outputs_whose_rows_are_not_those_of_the_batch_are_refused(tmp_path, device):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", COLUMNS])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [COLUMNS, "batch"])
    node = helper.make_node("Transpose", ["x"], ["y"])
    path = save(tmp_path / "m.onnx", helper.make_graph([node], "turned", [x], [y]))
    made = FakeEngine(path, device, [{"x": ((1, 4), (2, 4), (8, 4))}])
    with pytest.raises(UnsupportedModel):
        open_session(made, max_batch=8)


def test_inputs_that_have_no_batch_in_common_are_refused(tmp_path, device):
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("a", ["batch", 4]), ("b", [9, 4]))
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("c", "d")]
    nodes = [helper.make_node("Relu", ["a"], ["c"]), helper.make_node("Relu", ["b"], ["d"])]
    path = save(tmp_path / "m.onnx", helper.make_graph(nodes, "two", inputs, outputs))
    with pytest.raises(UnsupportedModel):
        open_session(FakeEngine(path, device, [{"a": ((1, 4), (2, 4), (8, 4))}]), max_batch=8)


def test_yolov8n_finds_what_it_finds_on_the_cpu(shared, tmp_path, device):
    build(BuildPlan(shared / "models" / "yolov8n.onnx", "n", tmp_path, "onnxruntime"))
    image = read_image(shared / "data" / "bus.jpg")
    with Engine.open(tmp_path / "n" / "1", threads=1) as cpu:
        expected = cpu.detect(image)
        row = cpu.card.inputs[0].shape[1:]
        profile = {cpu.card.inputs[0].name: tuple((n, *row) for n in (1, 1, 2))}
        made = FakeEngine(tmp_path / "n" / "1" / "model.onnx", device, [profile])
        with Engine(cpu.card, open_session(made, max_batch=2)) as gpu:
            found = gpu.detect(image)
    assert len(expected.boxes) > 3
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=0.01)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    assert found.class_ids.tolist() == expected.class_ids.tolist()


def test_the_stand_in_has_nothing_that_tensorrt_has_not():
    trt = pytest.importorskip("tensorrt_rtx_bindings", reason="pip install '.[rtx]'")
    own = {"session", "device", "profiles", "runs", "contexts", "types", "locations", "formats"}
    own |= {"inputs", "bytes_of", "dtype", "output_shapes", "strategy", "load", "make_context"}
    for fake, real in (
        (FakeEngine, trt.ICudaEngine),
        (FakeLoaded, trt.ICudaEngine),
        (FakeContext, trt.IExecutionContext),
        (FakeRuntimeConfig, trt.IRuntimeConfig),
    ):
        names = {name for name in vars(fake) if not name.startswith("_")} - own
        assert names <= set(dir(real))
