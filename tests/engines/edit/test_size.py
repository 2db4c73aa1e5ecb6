"""Setting and freeing the size of the input: the constants of grids, computed anew."""

import numpy as np
import onnx
import pytest
from onnx.numpy_helper import to_array
from tests.engines.edit.edits import difference, model, noise, run

from fovea_engines.edit.any_size import any_size
from fovea_engines.edit.cells import Length, flat_table, plane_table
from fovea_engines.edit.input_shape import set_size
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.plain_session import open_plain
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.onnx_graph.wiring import constants_of
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = pytest.mark.slow


SIZES = [(320, 320), (192, 320), (320, 224), (64, 480)]


def run_at(network, size):
    image = graph_inputs(network)[0]
    values = np.random.default_rng(7).random((1, 3, *size), np.float32)
    return open_plain(network.SerializeToString()).run(None, {image.name: values})


@pytest.mark.parametrize("pinned", [(320, 320), (192, 352)])
def test_any_size_is_what_the_exporter_writes_with_dynamic_axes(shared, pinned):
    name = "heads/yolo11-dynamic"
    fixed = normalise(model(shared, name), pinned)
    assert all(graph_outputs(fixed)[0].shape[1:]), "its grid is a constant now"
    found = any_size(fixed)
    assert found.values
    freed = found.dynamic()
    for size in SIZES:
        for ours, theirs in zip(
            run_at(freed, size), run_at(model(shared, name), size), strict=True
        ):
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
        for ours, theirs in zip(run_at(dynamic, size), run_at(expected, size), strict=True):
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
        ("heads/rtdetrv2", "has a constant .1, 100, 64."),
        ("heads/rfdetr", "cannot run at 160x128"),
        ("heads/ultraface-rfb-320", "cannot run at 208x256"),
        ("heads/tv-fcos", "is not an image"),
    ],
)
def test_networks_that_take_no_other_size_are_refused(shared, name, says):
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


def test_a_model_without_a_grid_takes_another_size(shared):
    source = model(shared, "yolox_nano")
    before = onnx.ModelProto.FromString(source.SerializeToString())
    edited = set_size(source, (224, 320))
    assert source == before
    assert graph_inputs(edited.model)[0].shape[1:] == (3, 224, 320)
    assert graph_outputs(edited.model)[0].shape[1:] == (28 * 40 + 14 * 20 + 7 * 10, 85)
    assert difference(source, edited) == 0, "by the network of any size, which takes both"


def test_a_dynamic_size_is_pinned_and_compared(shared):
    source = model(shared, "heads/yolo11-dynamic")
    with pytest.raises(InvalidOption, match="32"):
        set_size(source, (600, 640))
    edited = set_size(source, (256, 320))
    assert difference(source, edited) == 0
    assert metadata_of(edited.model)["imgsz"] == "[256, 320]"
    feed = {"images": noise(1, 3, 256, 320)}
    for name, found in run(edited.model, feed).items():
        np.testing.assert_allclose(found, run(source, feed)[name], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("heads/rtdetrv2", (256, 256), "/model/encoder/encoder.0/layers.0/Add"),
        ("heads/ultraface-rfb-320", (480, 640), "'474'"),
        ("heads/tf-od", (320, 320), "'h_Mul76'"),
        ("heads/rtdetr-clothes", (320, 320), "'h_Div75'"),
        ("heads/deeplabv3-mnv2", (513, 513), "'concat'"),
        ("heads/tv-fcos", (320, 320), "is not an image"),
    ],
)
def test_a_size_that_is_in_the_constants_is_refused(shared, name, size, says):
    source = model(shared, name)
    with pytest.raises(UnsupportedModel, match=says):
        difference(source, set_size(source, size))


@pytest.mark.parametrize("name", ["yolov5n", "yolov8n-seg-320", "heads/yolo26-pose"])
def test_the_constants_of_a_grid_are_computed_anew(shared, name):
    source = model(shared, name)
    any_size, one_size = set_size(source, None), set_size(source, (224, 352))
    assert difference(source, any_size) == 0
    assert difference(source, one_size) == 0
    assert graph_inputs(any_size.model)[0].shape[1:] == (3, -1, -1)
    feed = {"images": noise(1, 3, 224, 352)}
    for out, found in run(any_size.model, feed).items():
        np.testing.assert_allclose(found, run(one_size.model, feed)[out], rtol=1e-4, atol=1e-3)


def test_the_stride_that_a_model_states_holds(shared):
    with pytest.raises(InvalidOption, match="600x640"):
        set_size(model(shared, "heads/yolo11-dynamic"), (600, 640))
