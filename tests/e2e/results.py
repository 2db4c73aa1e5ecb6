"""Networks of a few kilobytes for each kind of result of whole images, and what they answer.

All images are of one colour, so that an answer can be computed here from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper
from tests.engines.tiny import constant, save

from fovea_client import ImageResult

COLOUR = (200, 100, 50)
SHARES = np.array(COLOUR, np.float32) / 255
SIDE = 16
AS_IT_IS = {"fit": "stretch", "channels": "RGB", "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def averaged(columns: int, seed: int):
    """Nodes and weights that compute `columns` numbers of an image's colour, and the matrix."""
    matrix = np.random.default_rng(seed).normal(size=(3, columns)).astype(np.float32)
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["colour"]),
        helper.make_node("MatMul", ["colour", "matrix"], ["mixed"]),
    ]
    return nodes, [constant("matrix", matrix)], matrix


IMAGES = [("images", ["batch", 3, SIDE, SIDE])]


def embedder(path: Path) -> Path:
    """Write a network that computes NaN for a black image."""
    nodes, weights, _ = averaged(16, 0)
    nodes += [
        helper.make_node("ReduceSum", ["colour"], ["light"]),
        helper.make_node("Div", ["light", "light"], ["one"]),
        helper.make_node("Mul", ["mixed", "one"], ["embedding"]),
    ]
    return save(path, nodes, IMAGES, [("embedding", ["batch", 16])], weights)


def check_embedding(result: ImageResult) -> None:
    raw = SHARES @ averaged(16, 0)[2]
    found = result.embedding
    assert abs(found.norm - np.linalg.norm(raw)) < 1e-4
    np.testing.assert_allclose(found.vector, raw / np.linalg.norm(raw), atol=1e-4)


LABELS = ("car", "van", "truck", "red", "green")


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


def _compare(attribute, name: str, first: int, probabilities) -> None:
    order = np.argsort(-probabilities)
    assert attribute.name == name
    assert [each.class_id for each in attribute.classes] == [first + i for i in order]
    assert [each.class_name for each in attribute.classes] == [LABELS[first + i] for i in order]
    scores = [each.score for each in attribute.classes]
    np.testing.assert_allclose(scores, probabilities[order], atol=1e-4)


def check_attributes(result: ImageResult) -> None:
    logits = SHARES @ averaged(5, 1)[2]
    for found, (name, first, last) in zip(
        result.attributes, (("type", 0, 3), ("color", 3, 5)), strict=True
    ):
        powers = np.exp(logits[first:last])
        _compare(found, name, first, powers / powers.sum())
        assert found.exclusive


def check_sigmoids(result: ImageResult) -> None:
    [found] = result.attributes
    _compare(found, "wears", 0, 1 / (1 + np.exp(-(SHARES @ averaged(5, 1)[2]))))
    assert not found.exclusive


STEPS = 12


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


def check_reading(result: ImageResult) -> None:
    logits = (SHARES @ averaged(STEPS * 7, 5)[2]).reshape(STEPS, 7)
    powers = np.exp(logits)
    steps = powers / powers.sum(axis=1, keepdims=True)
    best = [(int(step.argmax()), float(step.max())) for step in steps]
    runs = [next(run) for _, run in groupby(best, key=lambda each: each[0])]
    wanted = [(" abcde "[at], score) for at, score in runs if at]
    found = result.reading
    assert found.text == "".join(character for character, _ in wanted)
    assert len(found.text) > 3
    assert [each.character for each in found.characters] == list(found.text)
    scores = [score for _, score in wanted]
    np.testing.assert_allclose([each.score for each in found.characters], scores, atol=1e-4)
    np.testing.assert_allclose(found.score, np.mean(scores), atol=1e-4)


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


def check_picture(result: ImageResult) -> None:
    found = result.picture
    assert (found.width, found.height) == (2 * result.width, 2 * result.height)
    assert found.pixels.shape == (found.height, found.width, 3)
    assert np.abs(found.pixels - np.array(COLOUR) / 2).max() <= 0.5


def _by_id(result: ImageResult):
    classes = [each for one in result.attributes for each in one.classes]
    return [each.score for each in sorted(classes, key=lambda each: each.class_id)]


def _best(result: ImageResult):
    return [
        f"{one.name}={','.join(each.class_name for each in one.classes[:1])}"
        if one.exclusive
        else f"{one.name}={','.join(c.class_name for c in one.classes if c.score >= 0.5)}"
        for one in result.attributes
    ]


@dataclass(frozen=True)
class Kind:
    """A kind of result.

    Attributes:
        task: of the model.
        write: writes the network.
        check: compares the client's value with what must come.
        tensors: name in v2 -> returns the same of the client's value.
        columns: of the CSV file, behind the name of the file.
        line: is among what a terminal shows.
        given: options of the build.
    """

    task: str
    write: Callable[[Path], Path]
    check: Callable[[ImageResult], None]
    tensors: Mapping[str, Callable[[ImageResult], Any]]
    columns: tuple[str, ...]
    line: str
    given: Mapping[str, Any] = field(default_factory=dict)


KINDS = {
    "embedding": Kind(
        "embed",
        embedder,
        check_embedding,
        {
            "embedding": lambda result: result.embedding.vector,
            "norms": lambda result: result.embedding.norm,
        },
        ("norm", "vector"),
        "a vector of 16, norm",
    ),
    "reading": Kind(
        "read",
        reader,
        check_reading,
        {
            "text": lambda result: [result.reading.text],
            "scores": lambda result: result.reading.score,
            "character_scores": lambda result: [each.score for each in result.reading.characters],
        },
        ("text", "score"),
        " 0.",
    ),
    "picture": Kind(
        "image",
        painter,
        check_picture,
        {
            "picture": lambda result: result.picture.pixels / 255,
            "sizes": lambda result: (result.picture.height, result.picture.width),
        },
        ("width", "height"),
        "a picture of 80 x 60 pixels",
        {"preprocess": None},
    ),
    "attributes": Kind(
        "attributes",
        attributes,
        check_attributes,
        {"attributes": _best, "scores": _by_id},
        ("attribute", "class_id", "class_name", "score"),
        "color: ",
        {"labels": LABELS},
    ),
    "attributes-sigmoid": Kind(
        "attributes",
        sigmoids,
        check_sigmoids,
        {"attributes": _best, "scores": _by_id},
        ("attribute", "class_id", "class_name", "score"),
        "wears: ",
        {"labels": LABELS},
    ),
}
