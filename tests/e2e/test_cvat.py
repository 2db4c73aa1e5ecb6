"""CVAT's own program annotates a task with the models of a server."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from tests.built import build
from tests.conftest import DEMO, ROOT
from tests.e2e.cvat_double import TASK, cvat
from tests.serving import start_server

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan

CVAT = Path(sys.prefix) / "cvat" / "site-packages"
PYTHONPATH = os.pathsep.join([str(CVAT), str(ROOT / "client")])
DIGITS = {"detect": "digits", "obb": "digits-obb", "classify": "digits-classify"}
REAL = {
    "segment": "yolov8n-seg-320",
    "pose": "yolov8n-pose",
    "semantic": "heads/yolo26-sem",
    "saliency": "u2netp",
    "plain": "yolov8n-pose",
}
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not CVAT.exists(), reason=f"{CVAT} is absent: `make test-real` installs it"),
]


@pytest.fixture(scope="module")
def server(shared, tmp_path_factory):
    """A server with a model of each task, which is its name."""
    repository = tmp_path_factory.mktemp("models")
    sources = {task: DEMO / f"{file}.onnx" for task, file in DIGITS.items()}
    sources |= {task: shared / "models" / f"{file}.onnx" for task, file in REAL.items()}
    # Only the card of a build has the names of keypoints.
    build(BuildPlan(sources.pop("pose"), "pose", repository, "onnxruntime"))
    for task, source in sources.items():
        (repository / task / "1").mkdir(parents=True)
        (repository / task / "1" / "model.onnx").symlink_to(source)
    few = onnx.load(DEMO / "digits.onnx")
    del few.metadata_props[:]
    (repository / "few" / "1").mkdir(parents=True)
    onnx.save(few, repository / "few" / "1" / "model.onnx")
    (repository / "few" / "labels.txt").write_text("0\n")
    running = start_server(repository, tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


def cvat_cli(server, double, folder, words, model, flags):
    """Run cvat-cli with a model as its function."""
    parameters = {"url": f"str:{server.url}", "model": f"str:{model}"}
    program = [sys.executable, "-m", "cvat_cli", "--server-host", "http://127.0.0.1"]
    program += ["--server-port", str(double.server_address[1]), *words]
    program += ["--function-module", "fovea_client.cvat"]
    program += [word for each in parameters.items() for word in ("-p", "=".join(each))]
    places = {"PYTHONPATH": PYTHONPATH, "HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    return subprocess.run(
        [*program, *flags],
        env=os.environ | places | {"CVAT_ACCESS_TOKEN": "secret"},
        capture_output=True,
        text=True,
        check=False,
    )


def annotate(server, folder, images, labels, model, *flags):
    """The annotations that a task gets."""
    with cvat(images, labels) as double:
        words = ("task", "auto-annotate", str(TASK))
        done = cvat_cli(server, double, folder, words, model, flags)
        assert done.returncode == 0, done.stderr
        return double.sent


def label(number, name, kind, points=()):
    sublabels = [
        {"id": 100 * number + index, "name": point, "type": "points", "attributes": []}
        for index, point in enumerate(points)
    ]
    kinds = {"type": kind, "sublabels": sublabels, "attributes": []}
    return {"id": number, "name": name} | kinds


def found(server, model, path, **options):
    with Client(server.url) as client, Image.open(path) as image:
        return client.predict(model, image, **options).image


def test_rectangles(server, tmp_path):
    """Of the classes that the task has, in all of its images."""
    images = [DEMO / "scene-1.jpg", DEMO / "scene-2.jpg"]
    with Client(server.url) as client:
        names = client.model("detect").labels
    labels = [label(40 + index, name, "rectangle") for index, name in enumerate(names[:5])]
    flags = ("--allow-unmatched-labels", "--conf-threshold", "0.6")
    got = annotate(server, tmp_path, images, labels, "detect", *flags)["shapes"]
    want = [
        (frame, 40 + each.class_id, [each.box.x1, each.box.y1, each.box.x2, each.box.y2])
        for frame, path in enumerate(images)
        for each in found(server, "detect", path, conf=0.6).detections
        if each.class_id < 5
    ]
    assert [(each["frame"], each["label_id"], each["points"]) for each in got] == want
    assert len({frame for frame, *_ in want}) == 2
    assert {(each["type"], each["source"]) for each in got} == {("rectangle", "auto")}


@pytest.fixture
def bus(shared):
    return shared / "data" / "bus.jpg"


PEOPLE = ("--allow-unmatched-labels",)


def test_masks(server, bus, tmp_path):
    got = annotate(server, tmp_path, [bus], [label(7, "person", "mask")], "segment", *PEOPLE)
    want = [d for d in found(server, "segment", bus).detections if d.class_name == "person"]
    assert [each["type"] for each in got["shapes"]] == ["mask"] * len(want)
    height, width = want[0].mask.size
    for shape, each in zip(got["shapes"], want, strict=True):
        *runs, left, top, right, bottom = map(int, shape["points"])
        # CVAT's form: runs along the rows of the part that is given, the first outside.
        part = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
        pixels = np.zeros((height, width), bool)
        pixels[top : bottom + 1, left : right + 1] = part.reshape(bottom - top + 1, -1)
        assert (pixels == each.mask.pixels).all()


def test_masks_as_polygons_and_as_boxes(server, bus, tmp_path):
    people = [label(7, "person", "polygon")]
    flags = (*PEOPLE, "--conv-mask-to-poly")
    got = annotate(server, tmp_path, [bus], people, "segment", *flags)["shapes"]
    detections = found(server, "segment", bus, mask="polygon").detections
    want = [d for d in detections if d.class_name == "person"]
    assert [each["points"] for each in got] == [
        list(line) for d in want for line in d.mask.polygons
    ]
    people = [label(7, "person", "rectangle")]
    flags = (*PEOPLE, "-p", "boxes=bool:true", "-p", "max_det=int:2", "-p", "classes=str:person")
    got = annotate(server, tmp_path, [bus], people, "segment", *flags)["shapes"]
    boxes = [[d.box.x1, d.box.y1, d.box.x2, d.box.y2] for d in want[:2]]
    assert [each["points"] for each in got] == boxes


def test_skeletons(server, bus, tmp_path):
    people = found(server, "pose", bus).detections
    names = [point.name for point in people[0].keypoints]
    got = annotate(server, tmp_path, [bus], [label(3, "person", "skeleton", names)], "pose")
    shapes = got["shapes"]
    assert len(shapes) == len(people) > 0
    occluded = 0
    for shape, person in zip(shapes, people, strict=True):
        assert shape["type"] == "skeleton"
        for index, (element, point) in enumerate(
            zip(shape["elements"], person.keypoints, strict=True)
        ):
            assert element["label_id"] == 300 + index
            assert element["points"] == [point.x, point.y]
            assert element["occluded"] == (point.score < 0.5)
            assert element["outside"] == (not (0 <= point.x <= 810 and 0 <= point.y <= 1080))
            occluded += element["occluded"]
    assert 0 < occluded < len(people) * len(names)


def test_rotated_rectangles(server, tmp_path):
    scene = DEMO / "scene-1.jpg"
    objects = found(server, "obb", scene).detections
    names = sorted({each.class_name for each in objects})
    labels = [label(number, name, "rectangle") for number, name in enumerate(names, 1)]
    got = annotate(server, tmp_path, [scene], labels, "obb", *PEOPLE)["shapes"]
    assert len(got) == len(objects) > 0
    for shape, each in zip(got, objects, strict=True):
        x1, y1, x2, y2 = shape["points"]
        turn = math.radians(shape["rotation"])
        middle = np.array([(x1 + x2) / 2, (y1 + y2) / 2])
        matrix = [[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]]
        corners = [middle + matrix @ (np.array(p) - middle) for p in ((x1, y1), (x2, y2))]
        given = np.array([(c.x, c.y) for c in each.corners])
        for corner in corners:
            assert np.abs(given - corner).max(axis=1).min() < 0.1


def test_tags_and_areas(server, bus, tmp_path):
    digit = DEMO / "digit.jpg"
    best = found(server, "classify", digit).classes[0]
    tagged = [label(9, best.class_name, "tag")]
    assert [
        (each["label_id"], each["frame"])
        for each in annotate(server, tmp_path, [digit], tagged, "classify", *PEOPLE)["tags"]
    ] == [(9, 0)]
    surer = (*PEOPLE, "--conf-threshold", str(best.score + 1e-4))
    assert annotate(server, tmp_path, [digit], tagged, "classify", *surer)["tags"] == []
    areas = found(server, "semantic", bus, mask="rle").semantic.classes
    labels = [label(number, each.class_name, "mask") for number, each in enumerate(areas, 1)]
    got = annotate(server, tmp_path, [bus], labels, "semantic", *PEOPLE)["shapes"]
    assert [each["label_id"] for each in got] == list(range(1, len(areas) + 1))
    for shape, area in zip(got, areas, strict=True):
        assert sum(map(int, shape["points"][1:-4:2])) == area.pixels


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("saliency", "task is 'saliency'"),
        ("plain", "fovea build"),
        ("nobody", "no model 'nobody'"),
    ],
)
def test_what_cannot_be_annotated_says_why(server, bus, tmp_path, model, told):
    with cvat([bus], [label(1, "person", "any")]) as double:
        words = ("task", "auto-annotate", str(TASK))
        done = cvat_cli(server, double, tmp_path, words, model, ())
    assert done.returncode != 0
    assert told in done.stderr


def test_a_class_without_a_name_says_what_to_do(server, tmp_path):
    with cvat([DEMO / "scene-1.jpg"], [label(1, "0", "any")]) as double:
        words = ("task", "auto-annotate", str(TASK))
        done = cvat_cli(server, double, tmp_path, words, "few", ())
    assert done.returncode != 0
    assert "of 'few' has no label: build the model with" in done.stderr


def test_an_agent_offers_it_in_cvats_own_page(server, tmp_path):
    """The agent asks the same function; here CVAT is told of its labels."""
    with cvat([], []) as double:
        words = ("function", "create-native", "Fovea")
        done = cvat_cli(server, double, tmp_path, words, "pose", ())
        assert done.returncode == 0, done.stderr
        [person] = double.sent["labels_v2"]
    told = double.sent["kind"], person["name"], person["type"]
    assert told == ("detector", "person", "skeleton")
    points = [each["name"] for each in person["sublabels"]]
    assert (len(points), points[0]) == (17, "nose")
