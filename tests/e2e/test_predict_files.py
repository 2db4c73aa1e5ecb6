"""`fovea predict --out`: the same files from an engine here and from a server, in every format."""

import csv
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from tests.conftest import DEMO

from fovea_engines.evaluation.samples import read_image
from fovea_engines.evaluation.yolo import read_yolo
from fovea_engines.results.registry import read_result
from fovea_engines.results.vocabulary import NO_NAMES

# Of pycocotools, when it decodes masks.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

TASKS = ("detect", "segment", "pose", "obb", "classify")
OBJECTS = TASKS[:4]


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """The demo models as plain files, whose cards are derived."""
    root = tmp_path_factory.mktemp("repository")
    for task in TASKS:
        (root / task / "1").mkdir(parents=True)
        name = "digits" if task == "detect" else f"digits-{task}"
        (root / task / "1" / "model.onnx").symlink_to(DEMO / f"{name}.onnx")
    return root


@pytest.fixture(params=["here", "url"])
def source(request, repository) -> tuple[str, object]:
    if request.param == "here":
        return "--repository", repository
    return "--url", request.getfixturevalue("server").url


@pytest.fixture
def images(tmp_path) -> Path:
    """Two scenes, one of them in a folder of its own, and a file that is no image."""
    folder = tmp_path / "images"
    (folder / "sub").mkdir(parents=True)
    shutil.copy(DEMO / "scene-1.jpg", folder)
    shutil.copy(DEMO / "scene-2.jpg", folder / "sub")
    (folder / "notes.txt").touch()
    return folder


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]


def table(folder: Path) -> list[dict]:
    return list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))


@pytest.mark.parametrize("task", OBJECTS)
def test_every_format_of_objects(fovea, source, images, tmp_path, task):
    code, out, err = fovea(
        "predict", task, images, *source, "--out", "out", "--format", "coco,yolo",
        "--format", "csv,annotated",
    )  # fmt: skip
    assert code == 0, err
    assert "skipped 1 file" in err
    assert "processed 2 images; the results are in out" in out
    results = tmp_path / "out"
    found = lines(results)
    assert [line["file"] for line in found] == [
        str(images / "scene-1.jpg"), str(images / "sub" / "scene-2.jpg"),
    ]  # fmt: skip
    objects = [one for line in found for one in line["detections"]]
    assert len(objects) >= 8
    rows = table(results)
    assert [float(row["score"]) for row in rows] == [one["score"] for one in objects]
    assert [float(row["x1"]) for row in rows] == [one["box"]["x1"] for one in objects]
    if task == "pose":
        point = objects[0]["keypoints"][0]
        assert float(rows[0][f"{point['name']} x"]) == point["x"]
    if task == "obb":
        assert float(rows[0]["angle"]) == objects[0]["rotated"]["angle"]
    for name in ("scene-1", "sub/scene-2"):
        drawn = read_image(results / "annotated" / f"{name}.jpg").astype(int)
        plain = read_image(images / f"{name}.jpg")
        changed = np.abs(drawn - plain).max(axis=-1) > 60
        assert 0.005 < changed.mean() < 0.5
    check_coco(results, images, objects, task)
    check_yolo(results, images, found, task)


def check_coco(results: Path, images: Path, objects: list[dict], task: str) -> None:
    """The file is its own truth: judged by it, it is perfect."""
    truth = COCO(str(results / "predictions.json"))
    assert [image["file_name"] for image in truth.imgs.values()] == [
        "scene-1.jpg", "sub/scene-2.jpg",
    ]  # fmt: skip
    assert [a["score"] for a in truth.anns.values()] == [one["score"] for one in objects]
    names = [truth.cats[a["category_id"]]["name"] for a in truth.anns.values()]
    assert names == [one["class_name"] for one in objects]
    found = truth.loadRes(json.loads((results / "predictions.json").read_text())["annotations"])
    kind = {"segment": "segm", "obb": "segm", "pose": "keypoints"}.get(task, "bbox")
    judge = COCOeval(truth, found, kind)
    if task == "pose":
        judge.params.kpt_oks_sigmas = np.full(len(truth.cats[0]["keypoints"]), 0.05)
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    assert judge.stats[0] == pytest.approx(1.0)


def check_yolo(results: Path, images: Path, found: list[dict], task: str) -> None:
    """The labels are read back, by the reader that `fovea eval` has, as what was found."""
    read, names, _ = read_yolo(results, images)
    assert names == tuple(map(str, range(10)))
    close = 8 if task in ("segment", "obb") else 0.01  # of an outline, and clipped corners
    for labelled, line in zip(read, found, strict=True):
        boxes = [list(one["box"].values()) for one in line["detections"]]
        np.testing.assert_allclose(labelled.boxes, boxes, atol=close)
        assert labelled.class_ids.tolist() == [one["class_id"] for one in line["detections"]]
    document = yaml.safe_load((results / "data.yaml").read_text())
    assert document["names"] == {each: str(each) for each in range(10)}
    assert ("kpt_shape" in document) == (task == "pose")


def test_outlines_are_those_of_the_masks(fovea, repository, images, tmp_path):
    fovea("predict", "segment", images, "--repository", repository, "--out", "out",
          "--format", "yolo")  # fmt: skip
    for line, label in zip(lines(tmp_path / "out"), ("scene-1", "sub/scene-2"), strict=True):
        masks = read_result(line, NO_NAMES).masks
        rows = (tmp_path / "out" / "labels" / f"{label}.txt").read_text().splitlines()
        for index, row in enumerate(rows):
            outline = np.array(row.split()[1:], float).reshape(-1, 2)
            size = np.array([line["width"], line["height"]])
            drawn = np.zeros(masks.size, np.uint8)
            cv2.fillPoly(drawn, [(outline * size - 0.5).round().astype(np.int32)], 1)
            parts, _ = cv2.findContours(
                masks.bitmap(index), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
            )
            filled = cv2.drawContours(np.zeros(masks.size, np.uint8), parts, -1, 1, cv2.FILLED)
            assert (drawn & filled).sum() / (drawn | filled).sum() > 0.97


def test_a_classifier_has_tables_and_images(fovea, source, tmp_path):
    given = ("predict", "classify", DEMO / "digit.jpg", *source, "--out", "out")
    code, _, err = fovea(*given, "--format", "csv,annotated", "--top-k", 2)
    assert code == 0, err
    [line] = lines(tmp_path / "out")
    rows = table(tmp_path / "out")
    assert [row["class_name"] for row in rows] == [one["class_name"] for one in line["classes"]]
    assert len(rows) == 2
    code, _, err = fovea(*given, "--format", "coco", "--out", "other")
    assert (code, (tmp_path / "other").exists()) == (2, False)
    assert "--format coco does not support model 'classify', whose task is classify: " in err
    assert err.endswith("use one of annotated, csv, jsonl\n")


def test_numbers_in_names_are_the_ids_of_coco(fovea, repository, tmp_path):
    for number in (139, 285):
        shutil.copy(DEMO / "scene-1.jpg", tmp_path / f"{number:012}.jpg")
    fovea("predict", "detect", ".", "--repository", repository, "--out", "out", "--format", "coco")
    document = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert [image["id"] for image in document["images"]] == [139, 285]
    assert {one["image_id"] for one in document["annotations"]} == {139, 285}


@pytest.mark.parametrize("mask", ["polygon", "png", "none"])
def test_masks_of_other_forms_are_written_as_well(fovea, repository, images, tmp_path, mask):
    """Masks in every form give the same files as run lengths."""
    given = ("predict", "segment", images, "--repository", repository, "--format",
             "coco,yolo,annotated")  # fmt: skip
    for form in ("rle", mask):
        assert fovea(*given, "--mask", form, "--out", form)[0] == 0
    runs, others = (COCO(str(tmp_path / form / "predictions.json")) for form in ("rle", mask))
    least = {"polygon": 0.6, "png": 1}  # an outline fills holes, and goes through outer pixels
    for one, other in zip(runs.anns.values(), others.anns.values(), strict=True):
        if mask == "none":
            assert "segmentation" not in other
            continue
        first, second = runs.annToMask(one), others.annToMask(other)
        assert (first & second).sum() / (first | second).sum() >= least[mask]
    first, second = (
        read_image(tmp_path / form / "annotated" / "scene-1.jpg") for form in ("rle", mask)
    )
    assert (np.abs(first.astype(int) - second) > 60).mean() < (0.01 if mask != "none" else 0.3)
