"""Plates that are turned are read by their corners, in whatever order the detector lists these."""

import cv2
import numpy as np
import pytest
from onnx import helper
from tests.built import build
from tests.conftest import DEMO
from tests.engines.tiny import constant, save
from tests.pipelines.conftest import write_pipeline
from tests.serving import start_server
from tools.demo_models.plates import draw

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan
from fovea_engines.detect.heads.grid import grid
from fovea_pipelines.crops import corner_order

SIDE = 320
WIDE, HIGH = 128, 32
# Middle, and angle in degrees, clockwise; the last two are upside down.
PLACES = [(90, 40, 0), (230, 70, 25), (90, 160, -30), (100, 270, 180), (240, 210, 140)]
TEXTS = range(7_000_100, 7_000_100 + len(PLACES))
PLATES = '[[stages]]\nmodel = "{}"\n[[stages]]\nmodel = "reader"\ncrop = "keypoints"\n'
# Indices of corners, clockwise from the top left, in the order of CCPD.
CCPD = [2, 3, 0, 1]


def outline(x, y, degrees):
    """Corners of a plate, clockwise from the top left of its text."""
    angle = np.radians(degrees)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    flat = np.array([[-WIDE, -HIGH], [WIDE, -HIGH], [WIDE, HIGH], [-WIDE, HIGH]]) / 2
    return flat @ turn + (x, y)


def boxes_of(corners):
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def scene(count):
    """A picture with plates, whose top left pixel tells the detectors that it is one, and texts."""
    pixels = np.full((SIDE, SIDE, 3), 90, np.uint8)
    texts = []
    for place, seed in zip(PLACES[:count], TEXTS, strict=False):
        plate = draw(seed, worn=False)
        high, wide = plate.pixels.shape[:2]
        source = np.float32([[0, 0], [wide, 0], [wide, high], [0, high]])
        matrix = cv2.getPerspectiveTransform(source, outline(*place).astype(np.float32))
        cv2.warpPerspective(
            plate.pixels, matrix, (SIDE, SIDE), pixels, cv2.INTER_AREA, cv2.BORDER_TRANSPARENT
        )
        texts.append(plate.text)
    pixels[0, 0] = (255, 0, 255)
    return cv2.imencode(".png", pixels[..., ::-1])[1].tobytes(), texts


def fires():
    """Nodes that compute 1 of an image whose first pixel is red and not green, and else 0."""
    weights = [constant(f"at{i}", np.array([0, i, 0, 0])) for i in range(4)]
    weights += [constant("low", np.float32(0)), constant("one", np.float32(1))]
    weights += [constant("many", np.float32(1e4)), constant("almost", np.float32(0.8))]
    weights += [constant("ones", np.array([1, 1, 1, 1]))]
    nodes = [
        helper.make_node("Slice", ["images", "at0", "end0"], ["red"]),
        helper.make_node("Slice", ["images", "at1", "end1"], ["green"]),
        helper.make_node("Sub", ["red", "green"], ["more"]),
        helper.make_node("Mul", ["more", "many"], ["much"]),
        helper.make_node("Clip", ["much", "low", "one"], ["fire4"]),
        helper.make_node("Reshape", ["fire4", "flat"], ["fire"]),
    ]
    weights += [constant("end0", np.array([1, 1, 1, 1])), constant("end1", np.array([1, 2, 1, 1]))]
    weights += [constant("flat", np.array([1, 1, 1]))]
    return nodes, weights


def retinaface_plate(path):
    """Write a detector in the layout of `retinaface-plate` that finds all plates of a scene."""
    counts = [(SIDE // stride) ** 2 for stride in (8, 16, 32)]
    size = 2 * sum(counts)
    offsets, points = np.zeros((1, size, 4)), np.zeros((1, size, 8))
    shares = np.zeros((1, size, 2))
    shares[..., 0] = 1
    change = np.zeros((1, size, 2))
    corners = np.stack([outline(*place) for place in PLACES])
    for box, four in zip(boxes_of(corners), corners, strict=True):
        middle, sides = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
        column, row = (middle // 16).astype(int)
        at = 2 * (counts[0] + row * (SIDE // 16) + column) + 1
        prior, side = (np.array([column, row]) + 0.5) * 16, 128
        offsets[0, at] = [*(middle - prior) / (0.1 * side), *np.log(sides / side) / 0.2]
        points[0, at] = ((four[CCPD] - prior) / (0.1 * side)).ravel()
        change[0, at] = (-0.9, 0.9)
    nodes, weights = fires()
    for name, table in {"a": offsets, "b": shares, "c": points, "change": change}.items():
        weights.append(constant(name, table.astype(np.float32)))
    nodes += [
        helper.make_node("Mul", ["change", "fire"], ["found"]),
        helper.make_node("Add", ["b", "found"], ["scores"]),
        helper.make_node("Identity", ["a"], ["boxes"]),
        helper.make_node("Identity", ["c"], ["landmarks"]),
    ]
    outputs = [("boxes", [1, size, 4]), ("scores", [1, size, 2]), ("landmarks", [1, size, 8])]
    return save(path, nodes, [("images", [1, 3, SIDE, SIDE])], outputs, weights)


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
    nodes, weights = fires()
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
