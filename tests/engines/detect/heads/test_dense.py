"""Heads of one tensor over a grid, on files with stored rows."""

import pytest
from tests.engines.detect.heads.expected import File

from fovea_engines.detect.options import PredictOptions
from fovea_engines.graph.normalise import normalise
from fovea_engines.graph.tensors import graph_inputs, graph_outputs

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
