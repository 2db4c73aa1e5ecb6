"""Accuracy of answers whose class names are those of other things than the labels'."""

import json

import pytest
from PIL import Image

from fovea_engines.evaluation.labels import read_labelled
from fovea_preprocess.errors import InvalidOption
from fovea_server.offline.accuracy import answered_accuracy

CLASSES = [{"class_id": 0, "class_name": "tench", "score": 0.9}]
ANSWER = {
    "model": "m",
    "version": "1",
    "task": "classify",
    "images": [{"width": 8, "height": 8, "orientation": 1, "classes": CLASSES}],
    "timing_ms": dict.fromkeys(
        ("decode", "letterbox", "queue", "infer", "postprocess", "total"), 1.0
    ),
}


@pytest.mark.parametrize("folder", ["tench", "n01440764"])
def test_folders_that_no_answer_names_are_refused(tmp_path, folder):
    (tmp_path / folder).mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / folder / "a.jpg")
    labelled, answers = read_labelled(tmp_path), {0: json.dumps(ANSWER).encode()}
    if folder == "tench":
        assert answered_accuracy(answers, labelled).top1 == 1
        return
    with pytest.raises(InvalidOption, match="tench"):
        answered_accuracy(answers, labelled)
