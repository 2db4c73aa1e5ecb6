"""Rewrites of graphs: the same numbers, and what only looks like it is left alone."""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from tests.engines.tiny import constant, save

from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.rewrites import fuse_focus, move_late_transpose

ORDERS = list(itertools.permutations([(0, 0), (0, 1), (1, 0), (1, 1)]))[::5]


def focus(path, *, order=ORDERS[0], kernel=3, step=2, pads=None, strides=(1, 1), shown=False):
    """Four slices, a concatenation and a convolution."""
    random = np.random.default_rng(0)
    nodes, weights = [], [constant("end", np.array([2**31 - 1] * 2)), constant("axes", [2, 3])]
    weights.append(constant("steps", np.array([step, step])))
    for i, start in enumerate(order):
        weights.append(constant(f"start{i}", np.array(start)))
        taken = ["images", f"start{i}", "end", "axes", "steps"]
        nodes.append(helper.make_node("Slice", taken, [f"slice{i}"]))
    nodes.append(helper.make_node("Concat", [f"slice{i}" for i in range(4)], ["cat"], axis=1))
    weight = random.integers(-8, 9, size=(5, 12, kernel, kernel)).astype(np.float32)
    weights += [constant("w", weight), constant("b", np.arange(5, dtype=np.float32))]
    pads = [kernel // 2] * 4 if pads is None else pads
    nodes.append(
        helper.make_node("Conv", ["cat", "w", "b"], ["out"], pads=pads, strides=list(strides))
    )
    outputs = [("out", [1, 5, None, None])] + [("cat", [1, 12, None, None])] * shown
    return save(path, nodes, [("images", [1, 3, 24, 36])], outputs, weights)


def run(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, feeds)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("kernel", "pads"), [(1, None), (3, None), (5, [0, 1, 2, 3])])
def test_a_focus_layer_becomes_one_convolution(tmp_path, order, kernel, pads):
    model = onnx.load(focus(tmp_path / "m.onnx", order=order, kernel=kernel, pads=pads))
    # Sums of small integers are exact in float32, in whatever order a CPU's kernel adds them.
    row = np.random.default_rng(1).integers(0, 256, (1, 3, 24, 36)).astype(np.float32)
    [want] = run(model, {"images": row})
    fuse_focus(model)
    assert [node.op_type for node in model.graph.node] == ["Conv"]
    onnx.checker.check_model(model, full_check=True)
    [have] = run(model, {"images": row})
    np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize(
    "other",
    [{"order": [(0, 0), (0, 1), (1, 0), (1, 0)]}, {"strides": (2, 2)}, {"shown": True}],
)
def test_what_is_no_focus_layer_is_left_alone(tmp_path, other):
    model = onnx.load(focus(tmp_path / "m.onnx", **other))
    before = model.SerializeToString()
    fuse_focus(model)
    assert model.SerializeToString() == before


def test_yolox_has_a_focus_layer_and_a_late_transpose(shared):
    source = load(shared / "models" / "yolox_nano.onnx")
    row = np.random.default_rng(2).uniform(0, 255, (1, 3, 416, 416)).astype(np.float32)
    [want] = run(source.proto, {"images": row})
    model = normalise(source.proto)
    assert not any(node.op_type == "Slice" for node in model.graph.node)
    [have] = run(model, {"images": row})
    np.testing.assert_allclose(have, want, atol=2e-3)
    last = [node.op_type for node in model.graph.node][-7:]
    assert last == ["Transpose", "Reshape"] * 3 + ["Concat"]


GRIDS = {"a": (4, 6), "b": (2, 3)}


def tail(path, *, batch=0, axis=2, perm=(0, 2, 1), shape=(5, -1), shown=()):
    """Two grids of joined channels, flattened, joined and transposed."""
    nodes, weights = [], [constant("shape", [batch, *shape])]
    for name in GRIDS:
        nodes += [
            helper.make_node("Concat", [f"{name}4", f"{name}1"], [f"{name}5"], axis=1),
            helper.make_node("Reshape", [f"{name}5", "shape"], [f"{name}_flat"]),
        ]
    flat = [f"{name}_flat" for name in GRIDS]
    nodes += [
        helper.make_node("Concat", flat, ["joined"], axis=axis),
        helper.make_node("Transpose", ["joined"], ["out"], perm=list(perm)),
    ]
    inputs = [(f"{name}{c}", [1, c, *grid]) for name, grid in GRIDS.items() for c in (4, 1)]
    outputs = [(name, [None] * 3) for name in ("out", *shown)]
    return onnx.load(save(path, nodes, inputs, outputs, weights))


@pytest.mark.parametrize("batch", [0, 1])
def test_a_late_transpose_moves_before_its_concat(tmp_path, batch):
    model = tail(tmp_path / "m.onnx", batch=batch)
    random = np.random.default_rng(0)
    feeds = {
        value.name: random.random([d.dim_value for d in value.type.tensor_type.shape.dim])
        for value in model.graph.input
    }
    feeds = {name: values.astype(np.float32) for name, values in feeds.items()}
    want = run(model, feeds)
    move_late_transpose(model)
    onnx.checker.check_model(model, full_check=True)
    assert model.graph.node[-1].op_type == "Concat"
    np.testing.assert_array_equal(run(model, feeds), want)


@pytest.mark.parametrize(
    "other",
    [
        {"axis": 1, "shape": (-1, 5)},
        {"perm": (2, 0, 1)},
        {"batch": 5, "shape": (1, -1)},
        {"shown": ("joined",)},
        {"shown": ("a_flat",)},
    ],
)
def test_another_tail_is_left_alone(tmp_path, other):
    model = tail(tmp_path / "m.onnx", **other)
    before = model.SerializeToString()
    move_late_transpose(model)
    assert model.SerializeToString() == before
