"""Images in a folder for each class: what counts, and which labels fit which model."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.engines.tiny import tiny_detector

from fovea_engines.build.acceptance import rejection
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.evaluation import class_folders
from fovea_engines.evaluation.class_folders import ClassFolders, measure_classes, measure_matches
from fovea_engines.evaluation.dataset import Dataset
from fovea_engines.evaluation.labels import check_task, read_labelled
from fovea_engines.repository.accuracy import ClassAccuracy
from fovea_engines.repository.card import EngineCard
from fovea_preprocess.errors import InvalidOption, NotFound


@pytest.fixture
def folders(tmp_path) -> Path:
    """Two images of cats, one of a dog."""
    for name in ("cat/a.png", "cat/b.jpg", "dog/a.png"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20, 30, 3), 90, np.uint8)).save(path)
    (tmp_path / "data" / "empty").mkdir()
    (tmp_path / "data" / "cat" / "readme.md").write_text("no image")
    return tmp_path / "data"


def test_a_folder_is_a_class(folders):
    found = read_labelled(folders)
    assert isinstance(found, ClassFolders)
    assert [str(image.relative_to(folders)) for image in found.images] == [
        "cat/a.png",
        "cat/b.jpg",
        "dog/a.png",
    ]


def test_the_first_and_the_first_five_count(folders):
    names = {"cat/a.png": ["cat", "dog"], "cat/b.jpg": [*list("abcd"), "cat"], "dog/a.png": ["cat"]}
    accuracy = measure_classes(
        lambda image: names[str(image.relative_to(folders))], read_labelled(folders)
    )
    assert accuracy == ClassAccuracy(3, 1 / 3, 2 / 3, {"cat": 0.5, "dog": 0.0})
    assert (accuracy.metric, accuracy.figure) == ("top-1", 1 / 3)


def test_classes_meet_by_name_or_by_number(folders):
    found = read_labelled(folders)
    assert found.match_classes(("dog", "bird", "cat")) is found
    with pytest.raises(InvalidOption, match="'dog'"):
        found.match_classes(("bird", "cat"))
    with pytest.raises(InvalidOption, match="0, 1"):
        found.match_classes(None, 2)
    (folders / "cat").rename(folders / "0")
    (folders / "dog").rename(folders / "1")
    assert len(read_labelled(folders).match_classes(None, 2).images) == 3


def test_the_digest_knows_images_and_classes(folders):
    before = read_labelled(folders).sha256()
    assert read_labelled(folders).sha256() == before
    (folders / "dog" / "a.png").rename(folders / "cat" / "z.png")
    assert read_labelled(folders).sha256() != before


def test_labels_of_boxes_are_still_read(folders, tmp_path):
    labels = tmp_path / "labels"
    labels.mkdir()
    (labels / "a.txt").write_text("0 .5 .5 .2 .2\n")
    boxes = read_labelled(labels, folders / "cat")
    assert isinstance(boxes, Dataset)
    with pytest.raises(InvalidOption, match="classify"):
        check_task(boxes, "classify")
    with pytest.raises(InvalidOption, match="detect"):
        check_task(read_labelled(folders), "detect")
    with pytest.raises(NotFound):
        read_labelled(folders / "empty")


def test_a_build_of_a_detector_refuses_folders_of_classes(folders, tmp_path):
    model = tiny_detector(tmp_path / "d.onnx")
    with pytest.raises(InvalidOption, match="detect"):
        build(BuildPlan(model, "d", tmp_path / "r", data=folders))


def test_a_build_measures_a_real_classifier_and_judges_its_loss(shared, tmp_path):
    expected = shared / "models" / "heads" / "mobilenetv2.expected.json"
    labels = (shared / "models" / "imagenet_classes.txt").read_text().splitlines()
    for place, (name, rows) in enumerate(json.loads(expected.read_text())["images"].items()):
        # The last image lies in the folder of its second class.
        folder = tmp_path / "data" / labels[rows[place == 3]["class_id"]]
        folder.mkdir(parents=True)
        source = shared / "data" / ("" if name == "bus.jpg" else "coco64/val") / name
        (folder / name).symlink_to(source)
    plan = BuildPlan(
        shared / "models" / "mobilenetv2.onnx", "m", tmp_path / "r", "onnxruntime",
        labels=tuple(labels), data=tmp_path / "data",
    )  # fmt: skip
    card = build(plan)
    found = card.accuracy["fp32"]
    assert (found.images, found.top1, found.top5) == (4, 0.75, 1.0)
    assert found.per_class["police van"] == 1.0
    assert EngineCard.from_json(card.to_json()) == card
    text = (tmp_path / "r" / "m" / "1" / "card.md").read_text()
    assert "top-1 0.750" in text
    assert "| top-5 | 1.000 |" in text

    worse = ClassAccuracy(4, 0.5, 1.0, found.per_class)
    card = EngineCard.from_json(card.to_json() | {"precision": "int8"})
    card.accuracy["int8"] = worse
    assert "top-1 falls from 0.750 to 0.500" in rejection(card, 0.1)
    assert rejection(card, 0.25) is None


def named(*names):
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
    dataset = named(*names)
    found = dict(zip(dataset.images, vectors, strict=True))
    accuracy, pairs = measure_matches(found.__getitem__, dataset)
    first, five = [], []
    for at, name in enumerate(names):
        if names.count(name) == 1:
            continue
        others = [other for other in range(len(names)) if other != at]
        best = sorted(others, key=lambda other: -float(vectors[at] @ vectors[other]))
        first.append((name, names[best[0]]))
        five.append(name in [names[other] for other in best[:5]])
    assert pairs == first
    hits = [name == other for name, other in first]
    assert (accuracy.images, accuracy.figure) == (len(first), pytest.approx(np.mean(hits)))
    assert accuracy.recall5 == pytest.approx(np.mean(five))
    assert "alone" not in accuracy.per_class
    some = first[0][0]
    own = [hit for (name, _), hit in zip(first, hits, strict=True) if name == some]
    assert accuracy.per_class[some] == pytest.approx(np.mean(own))


def test_two_images_are_enough():
    dataset = named("a", "a")
    accuracy, _ = measure_matches(lambda _: np.array([1, 0], np.float32), dataset)
    assert (accuracy.recall1, accuracy.recall5, accuracy.images) == (1, 1, 2)
    with pytest.raises(InvalidOption):
        measure_matches(lambda _: np.array([1, 0], np.float32), named("a", "b"))
