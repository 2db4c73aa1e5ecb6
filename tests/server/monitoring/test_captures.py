"""Rules that choose images by results."""

import json
from datetime import UTC, datetime

import numpy as np
import pytest

from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import InvalidOption, InvalidResult
from fovea_server.models.config.capture_rules import parse_rule
from fovea_server.monitoring.captures import DAMAGED, StoredCapture
from fovea_server.offline.capture_export import export

WORDS = Vocabulary(("person", "dog"))


def objects(*scores, classes=None):
    ids = np.zeros(len(scores)) if classes is None else classes
    boxes = np.zeros((len(scores), 4), np.float32)
    return Detections(boxes, np.float32(scores), np.int32(ids))


def classes(*scores):
    return Classes(np.arange(len(scores), dtype=np.int32), np.float32(scores))


@pytest.mark.parametrize(
    ("rule", "found", "taken"),
    [
        ("score 0.3..0.5", objects(0.9, 0.4), True),
        ("score 0.3..0.5", objects(0.9, 0.6), False),
        ("score 0.3..0.5", objects(), False),
        ("score 0.3..0.5", classes(0.4, 0.1), True),
        ("score 0.3..0.5", classes(0.6, 0.4), False),
        ("classes dog,cat", objects(0.9, 0.8, classes=[0, 1]), True),
        ("classes cat", objects(0.9, classes=[1]), False),
        ("classes dog", classes(0.9, 0.1), False),
        ("classes person", classes(0.9, 0.1), True),
        ("empty", objects(), True),
        ("empty", objects(0.3), False),
        ("empty", classes(0.3), False),
        ("rate 100%", objects(), True),
        ("rate 1", classes(0.5), True),
    ],
)
def test_a_rule_takes(rule, found, taken):
    assert parse_rule(rule).takes(found, WORDS) is taken


def test_a_rate_is_a_share():
    takes = parse_rule("rate 20%").takes
    assert 300 < sum(takes(objects(), WORDS) for _ in range(2000)) < 500


def test_unlike_takes_what_is_new():
    takes = parse_rule("unlike").takes
    assert takes(objects(0.95, 0.91), WORDS)
    assert not takes(objects(0.95, 0.93), WORDS)
    assert takes(objects(0.31), WORDS)
    assert takes(objects(), WORDS)
    assert not takes(objects(), WORDS)
    assert not takes(classes(0.9), WORDS)
    assert not takes(classes(0.9), WORDS)
    along, across = Embedding(np.float32([2, 0.1])), Embedding(np.float32([0, 3]))
    takes = parse_rule("unlike 0.5").takes
    assert [takes(each, WORDS) for each in (along, along, across)] == [True, False, True]


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("scores 0.3..0.5", "did you mean 'score'"),
        ("score", "two scores"),
        ("score 0.5..0.3", "the lower one first"),
        ("score 0.3..1.5", "from 0 to 1"),
        ("score 1.2.3..2", "could not convert"),
        ("classes", "class names"),
        ("empty 3", "'empty' has no value"),
        ("rate 0%", "above 0 %"),
        ("rate 120%", "at most 100 %"),
        ("rate often", "could not convert"),
        ("unlike 2", "at most 1"),
        ("", "rules are 'score"),
    ],
)
def test_a_bad_rule_says_how_rules_are_written(rule, says):
    with pytest.raises(InvalidOption, match=says):
        parse_rule(rule)


# Captures as annotation tools take them.


BOX = {"box": {"x1": 2.0, "y1": 1.0, "x2": 6.0, "y2": 5.0}, "score": 0.5}
OUTLINE = {"size": [8, 8], "polygons": [[2.5, 1.5, 2.5, 4.5, 5.5, 4.5, 5.5, 1.5]]}
POINTS = [{"name": "nose", "x": 4.0, "y": 2.0, "score": 0.5}]
FOUND = {"segment": {"mask": OUTLINE}, "pose": {"keypoints": POINTS}, "obb": {}, "detect": {}}


def captured(folder, task, detections, /, **fields) -> StoredCapture:
    about = {
        "model": "m",
        "version": "1",
        "rule": "empty",
        "request_id": "7",
        "task": task,
        "labels": ["cat"],
        "skeleton": {"names": ["nose"], "bones": []} if task == "pose" else None,
        "result": {"width": 8, "height": 8, "orientation": 1, "detections": detections},
    } | fields
    place = folder / "m" / "day" / f"{len(detections)}"
    place.mkdir(parents=True)
    (place / "image.jpg").write_bytes(b"")
    (place / "predictions.json").write_text(json.dumps({"info": about}))
    return StoredCapture(place, datetime.now(UTC), 0)


@pytest.mark.parametrize("task", FOUND)
@pytest.mark.parametrize("form", ["coco", "yolo", "label-studio", "cvat"])
def test_an_image_without_an_object_is_exported_too(tmp_path, task, form):
    """Its answer does not show that the task has masks or keypoints."""
    one = BOX | {"class_id": 0, "class_name": "cat"} | FOUND[task]
    found = [captured(tmp_path, task, each) for each in ([one], [])]
    export(found, form, tmp_path / "out", "/data")
    assert len(list((tmp_path / "out" / "images").iterdir())) == 2
    if form == "label-studio":
        tasks = json.loads((tmp_path / "out" / "tasks.json").read_text())
        drawn = [each["predictions"][0]["result"] for each in tasks]
        assert [bool(each) for each in drawn] == [True, False]


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": 5},
        {"skeleton": {}},
        {"skeleton": {"names": ["nose"], "bones": [[0, 1]]}},
        {"skeleton": "nose"},
        {"result": None},
        {"result": {}},
        {"result": {"width": 8, "height": 8, "detections": [{}]}},
        {"result": {"width": 8, "height": 8, "detections": 3}},
    ],
)
@pytest.mark.parametrize("form", ["coco", "label-studio"])
def test_a_damaged_capture_is_named(tmp_path, form, fields):
    one = captured(tmp_path, "pose", [], **fields)
    with pytest.raises(InvalidResult, match=str(one.folder)):
        export([one], form, tmp_path / "out", "/data")


@pytest.mark.parametrize("name", ["version", "task", "rule", "request_id"])
@pytest.mark.parametrize("value", [None, 5])
def test_little_is_known_of_a_capture_that_lacks_something(tmp_path, name, value):
    one = captured(tmp_path, "detect", [], **{name: value})
    assert one.about()["rule"] == DAMAGED
