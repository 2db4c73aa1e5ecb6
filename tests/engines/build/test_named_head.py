"""A head that the user names: doubted by images of another domain, and forced against numbers."""

import json
import shutil

import cv2
import numpy as np
import onnxruntime
import pytest
from tests.conftest import SHARED
from tests.engines.build.test_recognised_at_build import Notes, plan
from tests.engines.cli.test_inspect_file import words

from fovea_engines.build.build import build
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import UnsupportedModel

MORE = SHARED / "models" / "more"
HANDS = MORE / "yolox-handsigns.onnx"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not MORE.is_dir(), reason=f"{MORE} is not there"),
]


def yolox_rows(source, pixels, conf):
    """Boxes, scores and classes of raw YOLOX before suppression, by its own demo's arithmetic."""
    session = onnxruntime.InferenceSession(source)
    side = session.get_inputs()[0].shape[2]
    height, width = pixels.shape[:2]
    ratio = min(side / height, side / width)
    small = cv2.resize(pixels, (int(width * ratio), int(height * ratio)))
    padded = np.full((side, side, 3), 114, np.uint8)
    padded[: small.shape[0], : small.shape[1]] = small
    row = padded[None, :, :, ::-1].transpose(0, 3, 1, 2).astype(np.float32)
    [rows] = session.run(None, {session.get_inputs()[0].name: row})[0]
    grids, steps = [], []
    for stride in (8, 16, 32):
        y, x = np.mgrid[: side // stride, : side // stride]
        grids.append(np.stack([x, y], 2).reshape(-1, 2))
        steps.append(np.full((x.size, 1), stride))
    grid, step = np.concatenate(grids), np.concatenate(steps)
    centre, half = (rows[:, :2] + grid) * step, np.exp(rows[:, 2:4]) * step / 2
    scores = rows[:, 4:5] * rows[:, 5:]
    kept = scores.max(1) >= conf
    boxes = np.concatenate([centre - half, centre + half], 1) / ratio
    return boxes[kept], scores.max(1)[kept], scores.argmax(1)[kept]


def test_a_named_head_wins_over_images_of_another_domain(shared, tmp_path):
    """Of photographs without hands its classes are unsure, as those without objectness are."""
    progress = Notes()
    card = build(plan(HANDS, tmp_path, family="yolox"), progress)
    assert card.family == "yolox"
    assert "too unsure to stand beside an objectness" in card.head_doubt
    [said] = [note for note in progress.notes if "--head yolox is doubted" in note]
    assert "--images" in said
    pixels = read_image(shared / "data" / "bus.jpg")
    boxes, scores, classes = yolox_rows(HANDS, pixels, 0.01)
    with Engine.open(tmp_path / "models" / "m" / "1") as engine:
        found = engine.detect(pixels, PredictOptions(conf=0.01, iou=1.0, max_det=1000))
    assert len(found) == len(boxes) > 3
    order = np.argsort(-scores, kind="stable")
    np.testing.assert_allclose(found.scores, scores[order], atol=1e-4)
    assert (found.class_ids == classes[order]).all()
    width = np.array([pixels.shape[1], pixels.shape[0]] * 2)
    np.testing.assert_allclose(found.boxes, boxes[order].clip(0, width), atol=0.5)


def test_a_head_that_nobody_names_is_not_guessed_in_doubt(shared, tmp_path):
    card = build(plan(HANDS, tmp_path))
    assert card.family is None
    assert "give --images that show what it finds, or say --head yolox if it is that" in card.reason


def test_images_of_the_user_judge_a_named_head(shared, tmp_path):
    """On this street its classes are surer than on a cat and a cup."""
    folder = tmp_path / "images"
    folder.mkdir()
    shutil.copy(shared / "data" / "bus.jpg", folder)
    assert build(plan(HANDS, tmp_path, family="yolox", images=folder)).head_doubt is None


def test_a_head_against_the_numbers_is_refused_or_forced(shared, tmp_path):
    source = shared / "models" / "yolox_nano.onnx"
    says = r"no sizes in pixels.* --images .* build it all the same with --force-head"
    with pytest.raises(UnsupportedModel, match=says):
        build(plan(source, tmp_path, family="yolox-decoded"))
    progress = Notes()
    card = build(plan(source, tmp_path, family="yolox-decoded", force_head=True), progress)
    assert card.family == "yolox-decoded"
    assert "forced by --force-head" in card.reason
    assert "no sizes in pixels" in card.head_doubt
    assert any("no sizes in pixels" in note for note in progress.notes)


def test_a_head_against_the_metadata_is_forced(shared, tmp_path):
    """`libreyolo-yolo9` reads its columns as corners, whatever Ultralytics' metadata says."""
    source = shared / "models" / "yolov8n.onnx"
    with pytest.raises(UnsupportedModel, match="--force-head"):
        build(plan(source, tmp_path, family="libreyolo-yolo9"))
    card = build(plan(source, tmp_path, family="libreyolo-yolo9", force_head=True))
    assert card.family == "libreyolo-yolo9"
    assert card.head_doubt


def test_what_cannot_be_decoded_is_not_forced(shared, tmp_path):
    source = shared / "models" / "yolov8n.onnx"
    with pytest.raises(UnsupportedModel, match="not of family yolox: ") as refused:
        build(plan(source, tmp_path, family="yolox", force_head=True))
    assert "--force-head" not in str(refused.value)


def test_the_card_shows_what_was_forced(shared, tmp_path, fovea):
    source, models = shared / "models" / "yolox_nano.onnx", tmp_path / "models"
    options = ["--repository", models, "--backend", "onnxruntime"]
    code, out, err = fovea(
        "build", source, "--head", "yolox-decoded", "--force-head", *options, "--name", "m"
    )
    assert code == 0, err
    assert "DOUBTED" in out
    assert "no sizes in pixels" in words(fovea("inspect", "m", "--repository", models)[1])
    shown = json.loads(fovea("inspect", "m", "--repository", models, "--json")[1])
    assert "no sizes in pixels" in shown[0]["card"]["head_doubt"]
    code, _, err = fovea("build", source, "--force-head", *options)
    assert (code, "--head" in err) == (2, True)
