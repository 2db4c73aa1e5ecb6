"""Pose models on real files, and RF-DETR's keypoints written by hand."""

import numpy as np
import pytest
from tests.engines.heads.by_hand import HEIGHT, WIDTH, told
from tests.engines.heads.test_segment import opened_file

from fovea_engines.heads.registry import FAMILIES as KNOWN
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import PERSON

pytestmark = pytest.mark.real

FAMILIES = {
    "yolov8n-pose": "yolov8-pose",
    "yolo11-pose": "yolov8-pose",
    "yolo26-pose": "yolov10-pose",
    "rfdetr-keypoints": "rfdetr-keypoints",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_and_keypoints_are_the_stored_ones(shared, name):
    file = opened_file(shared, name)
    recognition = file.recognise()
    assert (recognition.family, recognition.task) == (FAMILIES[name], "pose")
    assert recognition.skeleton == PERSON
    assert file.recognise(metadata=False).family == FAMILIES[name]
    file.assert_expected()


def rfdetr(classes):
    """Two persons, and a thing that has no keypoints, among five queries of three classes."""
    logits = np.full((1, 5, 3), -9, np.float32)
    logits[0, 0, classes - 1], logits[0, 1, classes - 1], logits[0, 2, 2] = 3, 2, 1
    boxes = np.full((1, 5, 4), 0.5, np.float32)
    boxes[0, :, 0] = [0.25, 0.5, 0.75, 0.2, 0.3]
    points = np.zeros((1, 5, 17 * classes, 8), np.float32)
    points[0, :2, -17:, 0] = np.linspace(0, 1, 17)
    points[0, :2, -17:, 1] = [[0.25], [0.75]]
    points[0, :2, -17:, 2] = [[0], [9]]
    return {"dets": boxes, "labels": logits, "keypoints": points}


@pytest.mark.parametrize("classes", [1, 2])
def test_rfdetr_has_keypoints_of_the_class_that_was_found(classes):
    outputs = rfdetr(classes)
    recognition = told(outputs, family="rfdetr-keypoints")
    head = KNOWN["rfdetr-keypoints"].open(recognition.outputs, (HEIGHT, WIDTH))
    found = head.decode(outputs, 0, PredictOptions(conf=0.5))
    assert found.class_ids.tolist() == [classes - 1, classes - 1, 2]
    person, other, thing = found.keypoints
    assert person[:, 0] == pytest.approx(np.linspace(0, WIDTH, 17))
    assert (person[:, 1] == HEIGHT / 4).all()
    assert (other[:, 1] == HEIGHT * 3 / 4).all()
    assert person[:, 2] == pytest.approx(0.5)
    assert other[:, 2] == pytest.approx(1, abs=1e-3)
    assert not thing.any()


def test_rfdetr_with_the_background_first():
    """The keypoints of column 1 belong to class 0."""
    outputs = rfdetr(2)
    outputs["labels"][0, 2, 2] = -9
    recognition = told(outputs, family="rfdetr-keypoints-background-first")
    head = KNOWN[recognition.family].open(recognition.outputs, (HEIGHT, WIDTH))
    found = head.decode(outputs, 0, PredictOptions(conf=0.5))
    assert found.class_ids.tolist() == [0, 0]
    assert (found.keypoints[:, :, 1] == [[HEIGHT / 4], [HEIGHT * 3 / 4]]).all()


def test_keypoints_of_no_person_are_refused():
    outputs = rfdetr(1)
    outputs["keypoints"] = outputs["keypoints"][:, :, :5]
    recognition = told(outputs)
    assert recognition.family is None
    assert "5 keypoints are not a person's 17 of each class" in recognition.reason
