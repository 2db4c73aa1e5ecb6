"""Setting the input size, and why that is refused."""

import numpy as np
import onnx
import pytest
from tests.engines.edit.edits import difference, model, noise, run

from fovea_engines.edit.input_shape import set_size
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = pytest.mark.slow


def test_a_model_without_a_grid_takes_another_size(shared):
    source = model(shared, "yolox_nano")
    edited = set_size(source, (224, 320))
    assert graph_inputs(edited.model)[0].shape[1:] == (3, 224, 320)
    assert graph_outputs(edited.model)[0].shape[1:] == (28 * 40 + 14 * 20 + 7 * 10, 85)
    assert difference(source, edited) == 0, "by the network of any size, which takes both"


def test_a_dynamic_size_is_pinned_and_compared(shared):
    source = model(shared, "heads/yolo11-dynamic")
    edited = set_size(source, (256, 320))
    assert difference(source, edited) == 0
    assert metadata_of(edited.model)["imgsz"] == "[256, 320]"
    feed = {"images": noise(1, 3, 256, 320)}
    for name, found in run(edited.model, feed).items():
        np.testing.assert_allclose(found, run(source, feed)[name], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("heads/rtdetrv2", (256, 256), "'/model/encoder/encoder.0/layers.0/Add' .Add. has a"),
        ("heads/ultraface-rfb-320", (480, 640), "fails at node '474' .Mul."),
        ("heads/tf-od", (320, 320), "'h_Mul76' .Mul. computes with 0.00240385, which is of"),
        ("heads/rtdetr-clothes", (320, 320), "'h_Div75' .Div. computes with 416"),
        ("heads/deeplabv3-mnv2", (513, 513), "do not fit at node 'concat' .Concat."),
        ("heads/tv-fcos", (320, 320), "takes no image"),
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
    with pytest.raises(InvalidOption, match="600x640: both sides must be multiples of 32"):
        set_size(model(shared, "heads/yolo11-dynamic"), (600, 640))


def test_the_model_itself_is_not_changed(shared):
    source = model(shared, "yolox_nano")
    before = onnx.ModelProto.FromString(source.SerializeToString())
    set_size(source, (320, 320))
    assert source == before
