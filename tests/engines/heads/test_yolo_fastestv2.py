"""Yolo-FastestV2: a network with the two outputs of its exporter, built and decoded by a loop."""

import math

import numpy as np
from onnx import helper
from tests.engines.heads.by_hand import opened, told
from tests.engines.tiny import constant, save

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.results.options import PredictOptions

SIZE, CLASSES = 352, 80
ANCHORS = {
    16: ((12.64, 19.39), (37.88, 51.48), (55.71, 138.31)),
    32: ((126.91, 78.23), (131.57, 214.55), (279.92, 258.87)),
}


def network(path, classes=CLASSES, seed=0):
    """Write a network of random weights: a convolution for each level and kind of output."""
    random = np.random.default_rng(seed)
    nodes, weights, names = [], [], []
    for stride in (16, 32):
        parts = []
        for kind, columns in (("reg", 12), ("obj", 3), ("cls", classes)):
            name = f"{kind}{stride}"
            kernel = random.normal(0, 0.1, (columns, 3, stride, stride)).astype(np.float32)
            weights.append(constant(f"w{name}", kernel))
            conv = ["images", f"w{name}"], [f"c{name}"]
            nodes.append(helper.make_node("Conv", *conv, strides=[stride, stride]))
            last = ("Softmax", {"axis": 1}) if kind == "cls" else ("Sigmoid", {})
            nodes.append(helper.make_node(last[0], [f"c{name}"], [name], **last[1]))
            parts.append(name)
        nodes.append(helper.make_node("Concat", parts, [f"all{stride}"], axis=1))
        output = f"out{stride}"
        nodes.append(helper.make_node("Transpose", [f"all{stride}"], [output], perm=[0, 2, 3, 1]))
        names.append((output, [1, SIZE // stride, SIZE // stride, 15 + classes]))
    return save(path, nodes, [("images", [1, 3, SIZE, SIZE])], names, weights)


def by_loop(outputs, least):
    """All boxes over a score, cell by cell and anchor by anchor, before suppression."""
    for (stride, anchors), level in zip(ANCHORS.items(), outputs, strict=True):
        for row in range(len(level)):
            for column in range(len(level)):
                cell = level[row, column].tolist()
                class_id = max(range(15, len(cell)), key=lambda at: cell[at]) - 15
                for number, (width, height) in enumerate(anchors):
                    score = cell[12 + number] * cell[15 + class_id]
                    if score < least:
                        continue
                    x, y, w, h = cell[4 * number : 4 * number + 4]
                    cx = (x * 2 - 0.5 + column) * stride
                    cy = (y * 2 - 0.5 + row) * stride
                    half = math.pow(w * 2, 2) * width / 2, math.pow(h * 2, 2) * height / 2
                    yield score, class_id, cx - half[0], cy - half[1], cx + half[0], cy + half[1]


def test_a_built_network_finds_what_a_loop_does(tmp_path):
    card = build(BuildPlan(network(tmp_path / "f.onnx"), "f", tmp_path / "m", "onnxruntime"))
    assert (card.family, card.num_classes) == ("yolo-fastestv2", CLASSES)
    spec = card.preprocess
    assert (spec.fit, spec.channels, spec.mean) == ("stretch", "BGR", (0.0, 0.0, 0.0))
    image = np.random.default_rng(1).integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8)
    with Engine.open(tmp_path / "m" / "f" / "1") as engine:
        outputs = engine.outputs_of(image)
        want = list(by_loop([outputs["out16"][0], outputs["out32"][0]], 0.25))
        options = PredictOptions(conf=0.25, iou=1.0, max_det=len(want) + 1)
        found = engine.head.decode(outputs, 0, options)
    assert len(want) > 50
    have = np.column_stack([found.scores, found.class_ids, found.boxes])
    # Scores may be equal, so that rows have no one order.
    apart = np.abs(have[:, None] - np.array(want)).max(axis=2)
    assert apart.min(axis=0).max() < 1e-2
    assert apart.min(axis=1).max() < 1e-2
    assert len(have) == len(want)


def maps(classes):
    random = np.random.default_rng(3)
    shapes = {"a": (22, 22), "b": (11, 11)}
    found = {}
    for name, shape in shapes.items():
        level = random.uniform(0.01, 0.1, (1, *shape, 15 + classes)).astype(np.float32)
        level[..., 15:] /= level[..., 15:].sum(axis=-1, keepdims=True)
        found[name] = level
    return found


def test_other_numbers_are_excluded():
    outputs = maps(CLASSES)
    head = opened(told(outputs, size=(SIZE, SIZE)), (SIZE, SIZE))
    assert head.family == "yolo-fastestv2"
    assert head.contradiction(outputs) is None
    assert "do not add up to 1" in head.contradiction({n: a * 0.5 for n, a in outputs.items()})
    assert head.contradiction({n: a * 30 for n, a in outputs.items()})
    assert len(head.decode(outputs, 0, PredictOptions())) == 0


def test_anchors_of_ones_own_are_asked_for():
    found = told(maps(5), size=(SIZE, SIZE))
    assert found.family is None
    assert "yolo-fastestv2 (a network of its own anchors" in found.reason
    assert told(maps(5), family="yolo-fastestv2", size=(SIZE, SIZE)).family == "yolo-fastestv2"
