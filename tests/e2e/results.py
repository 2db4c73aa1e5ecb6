"""A model of each task, the images that it is asked with, and what it must find.

The models of objects and classes are the demo's. The others are networks of a few kilobytes, whose
results can be computed from the image.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from onnx import helper
from tests.conftest import DEMO
from tests.engines.onnx_graph.test_normalise import bright
from tests.engines.tiny import constant, save

from fovea_client import Box, Detection, ImageResult
from fovea_engines.backends.registry import CPU_BACKENDS

COLOUR = (200, 100, 50)
SIDE = 16
AS_IT_IS = {"fit": "stretch", "channels": "RGB", "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
IMAGES = [("images", ["batch", 3, SIDE, SIDE])]
LABELS = ("car", "van", "truck", "red", "green")
STEPS = 12


def averaged(columns: int, seed: int):
    """Nodes and weights that compute `columns` numbers of an image's colour, and the matrix."""
    matrix = np.random.default_rng(seed).normal(size=(3, columns)).astype(np.float32)
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["colour"]),
        helper.make_node("MatMul", ["colour", "matrix"], ["mixed"]),
    ]
    return nodes, [constant("matrix", matrix)], matrix


def embedder(path: Path) -> Path:
    """Write a network that computes NaN for a black image."""
    nodes, weights, _ = averaged(16, 0)
    nodes += [
        helper.make_node("ReduceSum", ["colour"], ["light"]),
        helper.make_node("Div", ["light", "light"], ["one"]),
        helper.make_node("Mul", ["mixed", "one"], ["embedding"]),
    ]
    return save(path, nodes, IMAGES, [("embedding", ["batch", 16])], weights)


def attributes(path: Path) -> Path:
    """Write a network of two softmax, of three classes and of two."""
    nodes, weights, _ = averaged(5, 1)
    weights.append(constant("parts", np.array([3, 2])))
    nodes += [
        helper.make_node("Split", ["mixed", "parts"], ["t", "c"], axis=1),
        helper.make_node("Softmax", ["t"], ["type"], axis=1),
        helper.make_node("Softmax", ["c"], ["color"], axis=1),
    ]
    return save(path, nodes, IMAGES, [("type", ["batch", 3]), ("color", ["batch", 2])], weights)


def sigmoids(path: Path) -> Path:
    nodes, weights, _ = averaged(5, 1)
    nodes.append(helper.make_node("Sigmoid", ["mixed"], ["wears"]))
    return save(path, nodes, IMAGES, [("wears", ["batch", 5])], weights)


def reader(path: Path) -> Path:
    """Write a network of twelve steps, with a blank, five characters and a space."""
    nodes, weights, _ = averaged(STEPS * 7, 5)
    weights.append(constant("steps", np.array([0, STEPS, 7])))
    nodes += [
        helper.make_node("Reshape", ["mixed", "steps"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["characters"], axis=2),
    ]
    metadata = {"character": "\n".join("abcde")}
    outputs = [("characters", ["batch", STEPS, 7])]
    return save(path, nodes, IMAGES, outputs, weights, metadata=metadata)


def painter(path: Path) -> Path:
    """Write a network whose picture is twice as large and half as bright, or of black NaN."""
    nodes = [
        helper.make_node("GlobalMaxPool", ["images"], ["most"]),
        helper.make_node("Div", ["images", "most"], ["share"]),
        helper.make_node("Mul", ["share", "images"], ["same"]),
        helper.make_node("Mul", ["same", "half"], ["dark"]),
        helper.make_node("Resize", ["dark", "", "scales"], ["picture"], mode="nearest"),
    ]
    weights = [constant("half", np.float32(0.5)), constant("scales", np.float32([1, 1, 2, 2]))]
    return save(path, nodes, IMAGES, [("picture", ["batch", 3, 2 * SIDE, 2 * SIDE])], weights)


SHARES = np.array(COLOUR, np.float32) / 255
# A bright bar on a bluish ground, as large as the tiny networks take images.
BAR = np.full((SIDE, SIDE, 3), (20, 30, 60), np.uint8)
BAR[5:9, 3:13] = (250, 230, 90)
LIGHT, DARK = 190 / 255, 110 / 3 / 255


def png(pixels) -> bytes:
    return cv2.imencode(".png", np.asarray(pixels, np.uint8)[..., ::-1])[1].tobytes()


def mapper(op: str, *inputs: str, channels: int, **attributes: object) -> Callable[[Path], Path]:
    """Writes a network of one operation on each pixel."""
    nodes = [helper.make_node(op, inputs, ["out"], **attributes)]
    return lambda path: save(path, nodes, IMAGES, [("out", ["batch", channels, SIDE, SIDE])], [])


# A pixel's class is its strongest colour.
strongest = mapper("Identity", "images", channels=3)
grey = mapper("ReduceMean", "images", channels=1, axes=[1])
doubled = mapper("Add", "images", "images", channels=3)

FLAT = png(np.full((30, 40, 3), COLOUR)), png(np.full((20, 50, 3), (40, 120, 220)))
BARS = png(BAR), png(BAR[:, ::-1].repeat(2, axis=0).repeat(2, axis=1))
SCENES = tuple((DEMO / f"scene-{number}.jpg").read_bytes() for number in (1, 2))
DIGITS = (DEMO / "digit.jpg").read_bytes(), (DEMO / "seven.jpg").read_bytes()


def check_scores(classes, first: int, probabilities) -> None:
    order = np.argsort(-probabilities)
    assert [each.class_id for each in classes] == [first + i for i in order]
    assert [each.class_name for each in classes] == [LABELS[first + i] for i in order]
    scores = [each.score for each in classes]
    np.testing.assert_allclose(scores, probabilities[order], atol=1e-4)


def check_attributes(result: ImageResult) -> None:
    kind, colour = result.attributes
    logits = SHARES @ averaged(5, 1)[2]
    for found, name, part in ((kind, "type", slice(0, 3)), (colour, "color", slice(3, 5))):
        powers = np.exp(logits[part])
        assert (found.name, found.exclusive) == (name, True)
        check_scores(found.classes, part.start, powers / powers.sum())


def check_sigmoids(result: ImageResult) -> None:
    [found] = result.attributes
    assert (found.name, found.exclusive) == ("wears", False)
    check_scores(found.classes, 0, 1 / (1 + np.exp(-(SHARES @ averaged(5, 1)[2]))))


def check_embedding(result: ImageResult) -> None:
    raw = SHARES @ averaged(16, 0)[2]
    found = result.embedding
    assert found.norm == pytest.approx(np.linalg.norm(raw), abs=1e-4)
    np.testing.assert_allclose(found.vector, raw / np.linalg.norm(raw), atol=1e-4)


def check_reading(result: ImageResult) -> None:
    powers = np.exp((SHARES @ averaged(STEPS * 7, 5)[2]).reshape(STEPS, 7))
    steps = powers / powers.sum(axis=1, keepdims=True)
    best = [(int(step.argmax()), float(step.max())) for step in steps]
    runs = [next(run) for _, run in groupby(best, key=lambda each: each[0])]
    text, scores = zip(*((" abcde "[at], score) for at, score in runs if at), strict=True)
    found = result.reading
    assert list(found.text) == [each.character for each in found.characters] == list(text)
    assert len(text) > 3
    np.testing.assert_allclose([each.score for each in found.characters], scores, atol=1e-4)
    assert found.score == pytest.approx(np.mean(scores), abs=1e-4)


def check_picture(result: ImageResult) -> None:
    found = result.picture
    assert (found.width, found.height) == (2 * result.width, 2 * result.height)
    assert found.pixels.shape == (found.height, found.width, 3)
    assert np.abs(found.pixels - np.array(COLOUR) / 2).max() <= 0.5


def check_semantic(result: ImageResult) -> None:
    ground, bar = result.semantic.classes
    assert (ground.class_name, ground.pixels, ground.share) == ("blue", 216, 0.84375)
    assert (bar.class_name, bar.pixels, bar.share) == ("red", 40, 0.15625)
    assert (bar.mask.pixels == (BAR[..., 0] > 100)).all()


def check_saliency(result: ImageResult) -> None:
    assert (result.saliency.alpha == np.where(BAR[..., 0] > 100, 255, 0)).all()
    assert result.saliency.share == pytest.approx(40 / 256, abs=1e-4)


def check_depth(result: ImageResult) -> None:
    found = result.depth
    assert (found.min, found.max) == pytest.approx((DARK, LIGHT), abs=1e-4)
    np.testing.assert_allclose(found.values, BAR.mean(axis=2) / 255, atol=1e-4)


def check_text(result: ImageResult) -> None:
    [line] = result.detections
    # Corners are pixels: the score is of a column and a row more.
    score = (40 * LIGHT + 15 * DARK) / 55
    assert (line.class_name, line.score) == ("text", pytest.approx(score, abs=1e-4))
    # DB networks shrink lines, so that they do not touch.
    more = 1.6 * 10 * 4 / 14
    found = line.rotated
    assert (found.cx, found.cy, found.angle) == pytest.approx((8, 7, 0), abs=0.01)
    assert (found.w, found.h) == pytest.approx((10 + more, 4 + more), abs=0.01)


def check_doubled(result: ImageResult) -> None:
    [found] = result.tensors
    np.testing.assert_allclose(found.data, BAR.transpose(2, 0, 1) / 127.5, atol=1e-5)


def check_places(result: ImageResult) -> None:
    """The first number of a row is that of the image in a batch, whose size is one."""
    [found] = result.tensors
    assert found.data.shape == (8 * 8 * 3, 4)
    assert len(np.unique(found.data, axis=0)) == 8 * 8 * 3


def on_digits(result: ImageResult):
    """The scene as it was composed, and the one object on each of its digits."""
    for package in ("skimage", "sklearn"):
        pytest.importorskip(package, reason="the truth is composed from images of scikit-learn")
    from tools.demo_models.samples import sample

    scene = sample("scene-1.jpg")
    middles = (scene.boxes[:, :2] + scene.boxes[:, 2:]) / 2
    own = [[each for each in result.detections if holds(each.box, *middle)] for middle in middles]
    names = [[each.class_name for each in objects] for objects in own]
    assert names == [[str(label)] for label in scene.labels]
    assert len(result.detections) == len(own)
    return scene, [each for [each] in own]


def holds(box: Box, x: float, y: float) -> bool:
    return box.x1 < x < box.x2 and box.y1 < y < box.y2


def check_boxes(result: ImageResult) -> None:
    scene, objects = on_digits(result)
    for one, true in zip(objects, scene.boxes, strict=True):
        found = one.box.x1, one.box.y1, one.box.x2, one.box.y2
        assert np.abs(found - true).max() < 8


def check_masks(result: ImageResult) -> None:
    """They cover the ink."""
    scene, objects = on_digits(result)
    for number, one in enumerate(objects, start=1):
        ink, mask = scene.owners == number, one.mask.pixels
        assert (ink & mask).sum() / (ink | mask).sum() > 0.6


def check_points(result: ImageResult) -> None:
    (scene, objects), off = on_digits(result), []
    for one, true in zip(objects, scene.keypoints(), strict=True):
        assert tuple(point.name for point in one.keypoints) == POINTS
        places = np.array([(point.x, point.y) for point in one.keypoints])
        off.append(np.linalg.norm(places - true, axis=1) / np.linalg.norm(true[3] - true[1]))
    assert np.max(off) < 0.2
    assert np.mean(off) < 0.07


def check_rectangles(result: ImageResult) -> None:
    """They are turned as the digits, where upright ones would be off by the turns themselves."""
    (scene, objects), off = on_digits(result), []
    for one, (cx, cy, width, height, angle) in zip(objects, scene.rotated.tolist(), strict=True):
        longer, shorter = max(width, height), min(width, height)
        assert (one.rotated.cx, one.rotated.cy) == pytest.approx((cx, cy), abs=0.1 * longer)
        assert (one.rotated.w, one.rotated.h) == pytest.approx((longer, shorter), rel=0.2)
        of_width = angle if width > height else angle + math.pi / 2
        off.append(abs((one.rotated.angle - of_width + math.pi / 2) % math.pi - math.pi / 2))
        check_corners(one, result)
    assert np.max(off) < math.radians(20)
    assert np.mean(off) < 0.75 * np.abs(scene.rotated[:, 4]).mean()


def check_corners(one: Detection, result: ImageResult) -> None:
    """Clockwise from the first side, along which the angle points; the box is around them."""
    of = one.rotated
    points = np.array([(each.x, each.y) for each in one.corners])
    expected = cv2.boxPoints(((of.cx, of.cy), (of.w, of.h), math.degrees(of.angle)))
    assert all(np.abs(points - point).sum(axis=1).min() < 0.5 for point in expected)
    ahead = (points[1] + points[2]) / 2 - (of.cx, of.cy)
    direction = np.array([math.cos(of.angle), math.sin(of.angle)])
    assert ahead == pytest.approx(of.w / 2 * direction, abs=0.1)
    edge = [result.width, result.height] * 2
    upright = np.clip(np.concatenate([points.min(axis=0), points.max(axis=0)]), 0, edge)
    box = one.box
    assert (box.x1, box.y1, box.x2, box.y2) == pytest.approx(upright, abs=0.1)


def check_digit(result: ImageResult) -> None:
    first, *others = result.classes
    assert (first.class_name, len(others)) == ("4", 4)
    assert first.score > 0.8 > 0.2 > others[0].score


@dataclass(frozen=True)
class Model:
    """A row of the table.

    Attributes:
        task: of the model.
        images: two that differ; in the first is found what `check` compares.
        line: is among what a terminal shows.
        columns: of the CSV file, behind the name of the file; none where no table is written.
        write: writes the network, or a file of the demo that is served as it is.
        given: options of the build.
        forms: options that change the form of an answer.
        backend: that it is built for.
    """

    task: str
    images: tuple[bytes, bytes]
    check: Callable[[ImageResult], None]
    line: str
    columns: tuple[str, ...] = ()
    write: Callable[[Path], Path] | str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    forms: tuple[Mapping[str, Any], ...] = ()
    backend: str = "onnxruntime"


SCORED = ("class_id", "class_name", "score")
BOXED = (*SCORED, "x1", "y1", "x2", "y2")
TURNED = (*BOXED, "cx", "cy", "w", "h", "angle")
POINTS = ("centre", "top left", "top right", "bottom right", "bottom left")
MASKED = tuple({"mask": each} for each in ("polygon", "png", "none"))
BARE = ({"mask": "none"},)
TRACKED = ({"track": "bytetrack", "stream_id": "one", "frame": 1},)
VECTOR = ({"vector": "list", "normalize": False},)
MODELS = {
    "detect": Model(
        "detect", SCENES, check_boxes, "score", BOXED, "digits.onnx", forms=TRACKED
    ),
    "segment": Model(
        "segment", SCENES, check_masks, "score", BOXED, "digits-segment.onnx", forms=MASKED
    ),
    "pose": Model("pose", SCENES, check_points, "score", BOXED, "digits-pose.onnx"),
    "obb": Model("obb", SCENES, check_rectangles, "°", TURNED, "digits-obb.onnx"),
    "classify": Model("classify", DIGITS, check_digit, "0.9", SCORED, "digits-classify.onnx"),
    "semantic": Model(
        "semantic", BARS, check_semantic, "15.6%", (), strongest,
        {"family": "semantic", "labels": ("red", "green", "blue")}, MASKED,
    ),
    "saliency": Model(
        "saliency", BARS, check_saliency, "of the image is foreground", (), grey,
        {"family": "u2net"}, BARE,
    ),
    "depth": Model("depth", BARS, check_depth, "depth 0.144 to 0.745", (), grey,
        {"family": "depth"}, BARE,
    ),
    "text": Model("text", BARS, check_text, "°", TURNED, grey, {"family": "ppocr-det"}),
    "tensors": Model("tensors", BARS, check_doubled, "out", (), doubled),
    # Its output has a row for each thing in an image, in both runtimes.
    **{
        f"places-{backend}": Model(
            "tensors", BARS, check_places, "out", (), bright, {"preprocess": None},
            backend=backend,
        )
        for backend in CPU_BACKENDS
    },
    "embedding": Model(
        "embed", FLAT, check_embedding, "a vector of 16, norm", ("norm", "vector"), embedder,
        forms=VECTOR,
    ),
    "reading": Model("read", FLAT, check_reading, " 0.", ("text", "score"), reader),
    "picture": Model(
        "image", FLAT, check_picture, "an image of 80 x 60 pixels", ("width", "height"), painter,
        {"preprocess": None}, BARE,
    ),
    "attributes": Model(
        "attributes", FLAT, check_attributes, "color: ", ("attribute", *SCORED), attributes,
        {"labels": LABELS},
    ),
    "sigmoids": Model(
        "attributes", FLAT, check_sigmoids, "wears: ", ("attribute", *SCORED), sigmoids,
        {"labels": LABELS},
    ),
}  # fmt: skip
