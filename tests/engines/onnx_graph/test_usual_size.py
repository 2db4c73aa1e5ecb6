"""The size that a model of any size is given unasked: 224x224 where its rows are of images."""

import onnx
import pytest
from onnx import TensorProto, helper

from fovea_engines.onnx_graph.normalise import open_size


@pytest.mark.parametrize(
    ("batch", "rows", "size"),
    [
        ("n", ["n", 7], "224x224"),
        ("n", ["n", 6], "224x224"),
        (1, [1, 7], "224x224"),
        ("n", ["boxes", 7], "640x640"),
        (1, ["boxes", 6], "640x640"),
        ("n", [None, 6], "640x640"),
        (None, [None, 7], "640x640"),
        ("n", ["m", 1000], "224x224"),
    ],
)
def test_rows_of_images_are_told_from_rows_of_boxes(batch, rows, size):
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, "h", "w"])
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, rows)
    model = helper.make_model(helper.make_graph([], "graph", [image], [output]))
    assert open_size(onnx.load_from_string(model.SerializeToString())) == size
