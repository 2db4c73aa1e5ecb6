"""YOLOX's Transpose before its Concat: the same numbers, and left alone where it is another."""

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.engines.onnx_graph.test_focus import run
from tests.engines.tiny import constant, save

from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.rewrites import move_late_transpose

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
def test_it_computes_the_same(tmp_path, batch):
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


def test_yolox_has_one(shared):
    model = normalise(load(shared / "models" / "yolox_nano.onnx").proto)
    last = [node.op_type for node in model.graph.node][-7:]
    assert last == ["Transpose", "Reshape"] * 3 + ["Concat"]
