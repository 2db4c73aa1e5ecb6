"""Heads of one tensor over a grid, on files with stored rows."""

import numpy as np
import pytest
from tests.engines.heads.by_hand import opened, told
from tests.engines.heads.expected import File

from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_engines.results.options import PredictOptions

pytestmark = pytest.mark.real

STRICTER = {"options": PredictOptions(iou=0.45)}
FILES = {
    "yolo11-dynamic": ("yolov8", {}),
    "yolo26-not-end2end": ("yolov8", {}),
    "yolov6-clothes": ("yolov6", STRICTER),
    "yolox-nano-decoded": ("yolox-decoded", STRICTER),
}


@pytest.mark.parametrize("name", FILES)
def test_rows_are_the_stored_ones(shared, name):
    family, how = FILES[name]
    file = File(shared, name)
    if name == "yolo11-dynamic":
        file.graph = normalise(file.graph, (320, 320), lambda note: None)
        file.inputs, file.outputs = graph_inputs(file.graph), graph_outputs(file.graph)
    for _, rows in file.images.values():
        # A random YOLO26 gives a box of negative height, which its program keeps.
        rows[:] = [row for row in rows if row["box"][1] < row["box"][3]]
    assert file.recognise(metadata=False).family == family
    file.assert_expected(**how)


@pytest.mark.parametrize("family", ["yolov8", "yolov5", "yolox"])
def test_tiny_ones_have_two_strides(family):
    """Boxes that are planted at a cell of each stride, in the columns of YOLOv3-tiny's exports."""
    side, classes, anchors = 640, 80, 3 if family == "yolov5" else 1
    planted = []
    tables = []
    for stride, (column, row) in ((16, (11, 20)), (32, (14, 3))):
        count = side // stride
        places = np.stack(np.meshgrid(np.arange(count), np.arange(count)), axis=-1).reshape(-1, 2)
        table = np.zeros((anchors, count * count, 5 + classes), np.float32)
        table[..., :4] = [0.5, 0.5, 0, 0]
        if family != "yolox":
            table[..., :2] = (places + 0.5) * stride
            table[..., 2:4] = stride
        if family != "yolov8":
            # Of a cell without an object, one class is likely all the same.
            table[..., 5] = 0.6
        cell = table[-1, row * count + column]
        cell[4], cell[5 + stride] = 1, 0.75
        middle = (np.array([column, row]) + 0.5) * stride
        planted.append([*(middle - stride / 2), *(middle + stride / 2)])
        tables.append(table.reshape(-1, 5 + classes))
    columns = np.concatenate(tables)[None]
    if family == "yolov8":
        columns = np.delete(columns, 4, axis=2).transpose(0, 2, 1)
    labels = {"names": str({number: f"class {number}" for number in range(classes)})}
    found = told({"output0": columns}, labels, size=(side, side))
    assert found.family == family
    assert "at strides 16, 32 of 640x640" in found.reason
    head = opened(found, (side, side))
    objects = head.decode({"output0": columns}, 0, PredictOptions())
    assert objects.boxes.tolist() == planted
    assert objects.class_ids.tolist() == [16, 32]
    assert objects.scores.tolist() == [0.75, 0.75]
