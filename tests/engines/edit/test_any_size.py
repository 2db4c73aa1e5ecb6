"""Networks of one size that take any: the constants of their grids, computed anew."""

import numpy as np
import onnx
import pytest
from onnx.numpy_helper import to_array

from fovea_engines.edit.any_size import any_size
from fovea_engines.edit.cells import Length, flat_table, plane_table
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.plain_session import open_plain
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_engines.onnx_graph.wiring import constants_of
from fovea_preprocess.errors import UnsupportedModel

pytestmark = pytest.mark.slow

SIZES = [(320, 320), (192, 320), (320, 224), (64, 480)]


def model(shared, name):
    return load(shared / "models" / f"{name}.onnx").proto


def run(network, size):
    image = graph_inputs(network)[0]
    values = np.random.default_rng(7).random((1, 3, *size), np.float32)
    return open_plain(network.SerializeToString()).run(None, {image.name: values})


@pytest.mark.parametrize("pinned", [(320, 320), (192, 352)])
def test_it_is_what_the_exporter_writes_with_dynamic_axes(shared, pinned):
    name = "heads/yolo11-dynamic"
    fixed = normalise(model(shared, name), pinned)
    assert all(graph_outputs(fixed)[0].shape[1:]), "its grid is a constant now"
    found = any_size(fixed)
    assert found.values
    freed = found.dynamic()
    for size in SIZES:
        for ours, theirs in zip(run(freed, size), run(model(shared, name), size), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "yolov8n-seg-320",  # tables of all levels, and numbers of their cells
        "yolov5n",  # of each level, with anchors, and rows and columns apart
        "heads/yolo26-pose",  # boxes are chosen inside, and an attention of all cells
        "heads/picodet",  # four levels, and channels that are shuffled
    ],
)
def test_constants_are_the_same_at_the_own_size_and_shapes_follow_at_others(shared, name):
    source = model(shared, name)
    found = any_size(source)
    constants = {name: to_array(tensor) for name, tensor in constants_of(source).items()}
    own = graph_inputs(source)[0].shape[2:]
    for (node, slot), value in found.values.items():
        constant = constants.get(source.graph.node[node].input[slot])
        if constant is not None and value.at(own).dtype.kind == "f":
            np.testing.assert_array_equal(value.at(own), constant)
    dynamic = found.dynamic()
    other = own[0] - found.stride, own[1] - 2 * found.stride
    for size, expected in ((own, source), (other, found.at(other))):
        for ours, theirs in zip(run(dynamic, size), run(expected, size), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("strides", [(8, 16, 32), (16, 32)])
def test_a_table_of_cells_is_found_from_its_values_alone(apart, strides):
    def table(size):
        """Centres of three boxes of each cell, [1, boxes, 2]."""
        levels = []
        for stride in strides:
            x, y = np.meshgrid(*(np.arange(side // stride) + 0.5 for side in size[::-1]))
            centres = np.stack([x, y], -1) * stride
            copies = np.stack([centres + n for n in range(3)], 0 if apart else 2)
            levels.append(copies.reshape(1, -1, 2))
        return np.concatenate(levels, 1).astype(np.float32)

    size = 320, 256
    length = Length(strides, times=3)
    found = flat_table(table(size), 1, length, size)
    assert found is not None
    for other in ((32, 32), (640, 320), (320, 256), (96, 416)):
        np.testing.assert_array_equal(found.at(other), table(other))


def test_values_that_follow_no_rule_are_no_table():
    random = np.random.default_rng(0).random((1, 20, 20, 4), np.float32)
    assert plane_table(random, 1, 32) is None
    x, y = np.meshgrid(np.arange(20) / 20, np.arange(20) / 20)
    of_the_size = np.stack([x, y], -1)[None].astype(np.float32)
    assert plane_table(of_the_size, 1, 32) is None
    assert plane_table(of_the_size * 20, 1, 32) is not None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("heads/rtdetrv2", "has a constant .1, 100, 64. whose values.*export format=onnx dynamic"),
        ("heads/rfdetr", "cannot run at 160x128"),
        ("heads/ultraface-rfb-320", "cannot run at 208x256"),
        ("heads/tv-fcos", "takes no image"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(shared, name, says):
    with pytest.raises(UnsupportedModel, match=says):
        any_size(model(shared, name)).dynamic()


def test_the_batch_stays_as_it_was(shared):
    dynamic = any_size(model(shared, "yolov8n-seg-320")).dynamic()
    assert [spec.shape for spec in graph_outputs(dynamic)] == [(-1, 116, -1), (-1, 32, -1, -1)]
    assert graph_inputs(dynamic)[0].shape == (-1, 3, -1, -1)
    onnx.checker.check_model(dynamic)
    values = np.random.default_rng(7).random((2, 3, 96, 160), np.float32)
    both = open_plain(dynamic.SerializeToString()).run(None, {"images": values})
    assert [len(each) for each in both] == [2, 2]
