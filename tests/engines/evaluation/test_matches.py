"""Recall of embeddings, against a plain loop over all pairs of images."""

from pathlib import Path

import numpy as np
import pytest

from fovea_engines.evaluation import class_folders
from fovea_engines.evaluation.class_folders import ClassFolders, measure_matches
from fovea_preprocess.errors import InvalidOption

FIVE = 5


def folders(*names):
    images = tuple(Path("set", name, f"{at}.jpg") for at, name in enumerate(names))
    return ClassFolders(Path("set"), images)


@pytest.mark.parametrize("block", [7, 128])
def test_recall_is_that_of_all_pairs(monkeypatch, block):
    monkeypatch.setattr(class_folders, "_BLOCK", block)
    random = np.random.default_rng(3)
    names = [f"person{at}" for at in random.integers(0, 12, 60)] + ["alone"]
    centres = {name: random.normal(size=8) for name in names}
    vectors = np.stack([centres[name] + random.normal(size=8) for name in names])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    dataset = folders(*names)
    found = dict(zip(dataset.images, vectors, strict=True))
    accuracy, pairs = measure_matches(found.__getitem__, dataset)
    first, five = [], []
    for at, name in enumerate(names):
        if names.count(name) == 1:
            continue
        others = [other for other in range(len(names)) if other != at]
        best = sorted(others, key=lambda other: -float(vectors[at] @ vectors[other]))
        first.append((name, names[best[0]]))
        five.append(name in [names[other] for other in best[:FIVE]])
    assert pairs == first
    hits = [name == other for name, other in first]
    assert (accuracy.images, accuracy.figure) == (len(first), pytest.approx(np.mean(hits)))
    assert accuracy.recall5 == pytest.approx(np.mean(five))
    assert "alone" not in accuracy.per_class
    some = first[0][0]
    own = [hit for (name, _), hit in zip(first, hits, strict=True) if name == some]
    assert accuracy.per_class[some] == pytest.approx(np.mean(own))


def test_two_images_are_enough():
    dataset = folders("a", "a")
    accuracy, _ = measure_matches(lambda _: np.array([1, 0], np.float32), dataset)
    assert (accuracy.recall1, accuracy.recall5, accuracy.images) == (1, 1, 2)
    with pytest.raises(InvalidOption, match="no folder with two images"):
        measure_matches(lambda _: np.array([1, 0], np.float32), folders("a", "b"))
