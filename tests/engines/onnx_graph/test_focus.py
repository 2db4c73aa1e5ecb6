"""The Focus layer as one convolution: the same numbers, and left alone where it is not one."""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from tests.engines.tiny import constant, save

from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.rewrites import fuse_focus

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
def test_it_computes_the_same(tmp_path, order, kernel, pads):
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


def test_yolox_has_one(shared):
    source = load(shared / "models" / "yolox_nano.onnx")
    row = np.random.default_rng(2).uniform(0, 255, (1, 3, 416, 416)).astype(np.float32)
    [want] = run(source.proto, {"images": row})
    model = normalise(source.proto)
    assert not any(node.op_type == "Slice" for node in model.graph.node)
    [have] = run(model, {"images": row})
    np.testing.assert_allclose(have, want, atol=2e-3)
