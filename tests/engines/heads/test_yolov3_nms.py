"""YOLOv3 of the ONNX model zoo, with its suppression: a graph of that form, written here.

Its files are hundreds of megabytes, and no small one is at hand.
"""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.results.options import PredictOptions

pytestmark = pytest.mark.real

SIDE = 64
# y1 x1 y2 x2 as fractions; the second is suppressed by the first, the last is unsure.
FRACTIONS = np.float32(
    [[0.25, 0.25, 0.5, 0.75], [0.25, 0.25, 0.5, 0.7], [0.5, 0, 1, 0.5], [0, 0, 0.2, 0.2]]
)
SCORES = np.float32([[0.9, 0.8, 0.05, 0.1], [0.1, 0.1, 0.6, 0.1], [0.05, 0.05, 0.7, 0.2]])
LABELS = ("car", "cat", "cup")


def network(tiny):
    """Boxes in pixels of `image_shape`, which NonMaxSuppression chooses from."""
    constants = {
        "fractions": FRACTIONS[None],
        "sure": SCORES[None],
        "nothing": np.float32(0),
        "most": np.array([20], np.int64),
        "iou": np.float32([0.5]),
        "least": np.float32([0.5]),
        "whole": np.array([1, -1, 3], np.int64),
    }
    names = [f"yolonms_layer_1{end}" for end in ("", ":1", ":2")]
    nodes = [
        helper.make_node("ReduceMean", ["input_1"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "nothing"], ["zero"]),
        helper.make_node("Concat", ["image_shape", "image_shape"], ["sides"], axis=1),
        helper.make_node("Mul", ["fractions", "sides"], [names[0]]),
        helper.make_node("Add", ["sure", "zero"], [names[1]]),
        helper.make_node("NonMaxSuppression", [*names[:2], "most", "iou", "least"], ["kept"]),
        helper.make_node("Reshape", ["kept", "whole"], ["in_batch"]),
        helper.make_node(
            "Cast", ["in_batch" if tiny else "kept"], [names[2]], to=TensorProto.INT32
        ),
    ]
    count, shape = len(FRACTIONS), ([1, "k", 3] if tiny else ["k", 3])
    graph = helper.make_graph(
        nodes if tiny else [node for node in nodes if node.op_type != "Reshape"],
        "yolov3",
        [
            helper.make_tensor_value_info("input_1", TensorProto.FLOAT, [1, 3, SIDE, SIDE]),
            helper.make_tensor_value_info("image_shape", TensorProto.FLOAT, [1, 2]),
        ],
        [
            helper.make_tensor_value_info(names[0], TensorProto.FLOAT, [1, count, 4]),
            helper.make_tensor_value_info(names[1], TensorProto.FLOAT, [1, len(LABELS), count]),
            helper.make_tensor_value_info(names[2], TensorProto.INT32, shape),
        ],
        [
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in constants.items()
            if tiny or name != "whole"
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("tiny", [False, True])
def test_what_the_graph_keeps_is_found(shared, tmp_path, tiny):
    onnx.save(network(tiny), tmp_path / "yolov3.onnx")
    repository = tmp_path / "models"
    card = build(
        BuildPlan(tmp_path / "yolov3.onnx", "yolov3", repository, "onnxruntime", labels=LABELS)
    )
    assert (card.family, card.num_classes) == ("yolov3-nms", 3)
    with Engine.open(repository / "yolov3" / "1") as engine:
        assert [one.name for one in engine.session.inputs] == ["input_1"]
        # Twice as wide as high: its sides are 64 x 32 pixels of the input, below a grey strip.
        found = engine.detect(np.zeros((100, 200, 3), np.uint8), PredictOptions(conf=0.3))
    assert found.class_ids.tolist() == [0, 2, 1]
    assert found.scores == pytest.approx([0.9, 0.7, 0.6])
    y1, x1, y2, x2 = (FRACTIONS[[0, 2, 2]] * SIDE).T
    want = np.stack([x1, y1 - 16, x2, y2 - 16], axis=1) * 200 / SIDE
    assert found.boxes == pytest.approx(np.clip(want, 0, [200, 100, 200, 100]), abs=0.01)
