"""Captures as annotation tools take them."""

import json
from datetime import UTC, datetime

import pytest

from fovea_preprocess.errors import InvalidResult
from fovea_server.monitoring.captures import DAMAGED, StoredCapture
from fovea_server.offline.capture_export import export

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
