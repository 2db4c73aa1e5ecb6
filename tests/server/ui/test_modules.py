"""The page's modules in Node: tests of their own, and the same results as the server."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import DEMO
from tests.run_lengths import decoded

from fovea_engines.results.colours import colour, ink, shades
from fovea_engines.results.mask_encoding import run_lengths
from fovea_engines.results.masks import Bitmap
from fovea_engines.results.nms import detections
from fovea_engines.results.options import PredictOptions

SCENES = [DEMO / "scene-1.jpg", DEMO / "scene-2.jpg"]


@pytest.mark.parametrize("file", ["drawn", "found", "models", "request"])
def test_modules(node, file):
    node.test(f"{file}.test.js")


def named(boxes):
    return [dict(zip(("x1", "y1", "x2", "y2"), map(float, box), strict=True)) for box in boxes]


def test_classes_have_the_colours_that_the_server_draws_in(node):
    found = node.evaluate(
        "import('./colours.js').then(({ colour, ink }) => given.map(([id, shade]) =>"
        " [colour(id, shade), ink(colour(id, shade))]))",
        asked := [(n >> 2, n % 4) for n in range(300)],
    )
    letters = {(0, 0, 0): "#000", (255, 255, 255): "#fff"}
    wanted = [colour(*each) for each in asked]
    assert found == [[list(each), letters[ink(each)]] for each in wanted]


def test_instances_have_the_shades_that_the_server_draws_in(node):
    random = np.random.default_rng(4)
    corners = random.integers(0, 300, (60, 2))
    boxes = np.hstack([corners, corners + random.integers(9, 90, (60, 2))]).tolist()
    classes = random.integers(0, 3, 60).tolist()
    items = [
        {"box": box, "class_id": each} for box, each in zip(named(boxes), classes, strict=True)
    ]
    chosen = shades(classes, boxes)
    assert set(chosen) == {0, 1, 2, 3}
    shaded = (
        "import('./colours.js').then(({ shadeApart, colourOf }) => {"
        " shadeApart(given); return given.map(colourOf); })"
    )
    found = node.evaluate(shaded, [each | {"mask": {}} for each in items])
    assert [tuple(each) for each in found] == list(map(colour, classes, chosen))
    found = node.evaluate(shaded, items)
    assert [tuple(each) for each in found] == list(map(colour, classes))


def test_overlaps_are_suppressed_as_the_server_does(node):
    random = np.random.default_rng(3)
    corners = random.uniform(0, 80, (200, 2))
    boxes = np.hstack([corners, corners + random.uniform(20, 60, (200, 2))]).astype(np.float32)
    scores = np.sort(random.uniform(0.1, 1, 200))[::-1].astype(np.float32)
    classes = random.integers(0, 3, 200)
    items = [
        {"box": box, "score": float(score), "class_id": int(class_id)}
        for box, score, class_id in zip(named(boxes), scores, classes, strict=True)
    ]
    ious = (0.2, 0.5, 0.8)
    found = node.evaluate(
        "import('./found.js').then(({ filterItems }) => given[1].map((iou) =>"
        " filterItems({ detections: given[0] }, { conf: 0, iou: 1 }, { conf: 0.3, iou })"
        " .map((each) => each.score)))",
        [items, ious],
    )
    for iou, kept in zip(ious, found, strict=True):
        options = PredictOptions(conf=0.3, iou=iou)
        assert kept == detections(boxes, scores, classes, options).scores.tolist()
    assert len(set(map(len, found))) == 3


def test_run_lengths_are_read_as_coco_reads_them(node):
    packed = []
    for seed in range(5):
        random = np.random.default_rng(seed)
        blobs = (random.uniform(size=(60, 90)) < 0.5 - 0.1 * seed).astype(np.uint8)
        packed.append(run_lengths(Bitmap(7, 5, blobs), (80, 110)))
    found = node.evaluate(
        "import('./masks.js').then(({ runs }) => given.map(runs))",
        [each["counts"] for each in packed],
    )
    for each, lengths in zip(packed, found, strict=True):
        mask = np.repeat(np.arange(len(lengths)) % 2, lengths).reshape(110, 80).T
        assert (mask == decoded(each)).all()
        assert mask.any()


def test_files_of_all_images_are_those_of_predict(node, fovea, demo_repository, tmp_path):
    command = ["predict", "digits", *map(str, SCENES), "--repository", demo_repository]
    code, _, error = fovea(*command, "--format=coco,csv", f"--out={tmp_path}")
    assert code == 0, error
    answers = [
        json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()
    ]
    model = {"name": "digits", "version": "1", "task": "detect", "labels": list("0123456789")}
    results = [
        {"name": scene.name, "answer": answer, "items": answer["detections"]}
        for scene, answer in zip(SCENES, answers, strict=True)
    ]
    coco, table = node.evaluate(
        "import('./results.js').then(({ FORMS }) => Promise.all(['COCO', 'CSV'].map((form) =>"
        " FORMS[form].write(...given).text())))",
        [results, model],
    )
    assert json.loads(coco) == json.loads((tmp_path / "predictions.json").read_text())
    ours, theirs = (
        list(csv.DictReader(text.splitlines()))
        for text in (table, (tmp_path / "predictions.csv").read_text())
    )
    for row in (*ours, *theirs):
        row["file"] = Path(row["file"]).name
        row |= {name: float(row[name]) for name in ("score", "x1", "y1", "x2", "y2")}
    assert ours == theirs
    assert len(ours) > 10
