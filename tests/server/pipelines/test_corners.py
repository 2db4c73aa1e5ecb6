"""Plates that are turned are read by their corners, in whatever order the detector lists these."""

import numpy as np
import pytest
from onnx import helper
from tests.built import build
from tests.conftest import DEMO
from tests.engines.plates import PLACES, SIDE, boxes_of, fires, outline, retinaface_plate, scene
from tests.engines.tiny import constant, save
from tests.server.pipelines.conftest import write_pipeline
from tests.serving import start_server

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan
from fovea_engines.heads.grid import grid
from fovea_server.pipelines.stages import corner_order

PLATES = '[[stages]]\nmodel = "{}"\n[[stages]]\nmodel = "reader"\ncrop = "keypoints"\n'


def pose(path, order, names=None, places=PLACES):
    """Write a detector of YOLOv8's layout for poses, of four points in an order."""
    size = sum((SIDE // stride) ** 2 for stride in (8, 16, 32))
    table, change = np.zeros((1, 13, size)), np.zeros((1, 13, size))
    places_of_cells, strides = grid((SIDE, SIDE), (8, 16, 32))
    table[0, :2] = ((places_of_cells + 0.5) * strides).T
    table[0, 2:4] = strides.T
    corners = np.stack([outline(*place) for place in places])
    boxes = boxes_of(corners)
    for at, (box, four) in enumerate(zip(boxes, corners, strict=True)):
        table[0, :4, at] = [*(box[:2] + box[2:]) / 2, *(box[2:] - box[:2])]
        table[0, 5:, at] = four[order].ravel()
        change[0, 4, at] = 0.9
    nodes, weights = fires(1)
    weights += [constant("a", table.astype(np.float32)), constant("c", change.astype(np.float32))]
    nodes += [
        helper.make_node("Mul", ["c", "fire"], ["found"]),
        helper.make_node("Add", ["a", "found"], ["output0"]),
    ]
    metadata = {"task": "pose", "names": "{0: 'plate'}", "kpt_shape": "[4, 2]", "stride": "32"}
    if names:
        metadata["kpt_names"] = repr({0: names})
    outputs = [("output0", [1, 13, size])]
    return save(path, nodes, [("images", [1, 3, SIDE, SIDE])], outputs, weights, metadata=metadata)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corners")
    repository = folder / "r"
    family = {"family": "retinaface-plate", "preprocess": {}}
    build(BuildPlan(DEMO / "plates-read.onnx", "reader", repository, "onnxruntime"))
    names = ["BL", "TL", "TR", "BR"]
    sources = {
        "ccpd": (retinaface_plate(folder / "ccpd.onnx"), family),
        "named": (pose(folder / "named.onnx", [3, 0, 1, 2], names), {}),
        "listed": (pose(folder / "listed.onnx", [0, 1, 2, 3], places=PLACES[:3]), {}),
        "turned": (pose(folder / "turned.onnx", [2, 3, 0, 1], places=PLACES[:3]), {}),
        "mirrored": (pose(folder / "mirrored.onnx", [1, 0, 3, 2], places=PLACES[:3]), {}),
        "crossed": (pose(folder / "crossed.onnx", [0, 1, 3, 2], places=PLACES[:3]), {}),
    }
    for name, (source, given) in sources.items():
        build(BuildPlan(source, name, repository, "onnxruntime", **given))
        write_pipeline(repository, f"{name}-texts", PLATES.format(name))
    server = start_server(repository, folder)
    with Client(server.url) as asking:
        yield asking
    assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [("ccpd", 5), ("named", 5), ("listed", 3), ("turned", 3), ("mirrored", 3), ("crossed", 3)],
)
def test_turned_plates_are_read(client, name, count):
    sent, texts = scene(count)
    found = client.predict(f"{name}-texts", sent).detections
    assert sorted(each.text.text for each in found) == sorted(texts)


@pytest.mark.parametrize(
    ("names", "order"),
    [
        ("bottom right|bottom left|top left|top right", (2, 3, 0, 1)),
        ("top_left|top_right|bottom_right|bottom_left", (0, 1, 2, 3)),
        ("Left-Top|Left-Bottom|Right-Bottom|Right-Top", (0, 3, 2, 1)),
        ("tl|tr|bl|br", (0, 1, 3, 2)),
        ("point 0|point 1|point 2|point 3", None),
        ("tl|tl|bl|br", None),
        ("tl|tr|bl|br|middle", None),
    ],
)
def test_names_of_corners(names, order):
    assert corner_order(names.split("|")) == order
