"""The demo models on their sample images, over a real server, against what was composed there."""

import math

import numpy as np
import pytest
from tests.conftest import DEMO
from tests.serving import start_server

from fovea_client import Client, Detection

pytest.importorskip("skimage", reason="the truth is composed from photographs in scikit-image")
pytest.importorskip("sklearn", reason="the truth is composed from digits in scikit-learn")

from tools.demo_models.samples import DIGIT, SEEDS, sample
from tools.demo_models.scenes import CLASS_NAMES, KEYPOINTS

pytestmark = pytest.mark.slow

TASKS = ("segment", "pose", "obb", "classify")
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A client of a server that has the files as they are: their head is recognised."""
    repository = tmp_path_factory.mktemp("repository")
    for task in TASKS:
        folder = repository / task / "1"
        folder.mkdir(parents=True)
        (folder / "model.onnx").symlink_to(DEMO / f"digits-{task}.onnx")
    server = start_server(repository, tmp_path_factory.mktemp("log"))
    with Client(server.url) as asking:
        yield asking
    assert server.stop() == 0


@pytest.mark.parametrize("task", TASKS)
def test_a_network_is_at_most_a_megabyte_and_names_its_task(client, task):
    assert (DEMO / f"digits-{task}.onnx").stat().st_size <= MEGABYTE
    assert client.predict(task, DEMO / DIGIT).task == task
    assert client.model(task).labels == CLASS_NAMES


def found(client: Client, task: str, name: str) -> list[Detection]:
    """The object on each digit of a scene, in the scene's order: as many, of the same classes."""
    scene, objects = sample(name), client.predict(task, DEMO / name).detections
    middles = (scene.boxes[:, :2] + scene.boxes[:, 2:]) / 2
    own = [
        [one for one in objects if one.box.x1 < x < one.box.x2 and one.box.y1 < y < one.box.y2]
        for x, y in middles
    ]
    assert [[one.class_name for one in each] for each in own] == [
        [CLASS_NAMES[label]] for label in scene.labels
    ]
    assert len(objects) == len(own)
    return [one for [one] in own]


@pytest.mark.parametrize("name", SEEDS)
def test_masks_cover_the_ink(client, name):
    owners = sample(name).owners
    for number, one in enumerate(found(client, "segment", name), start=1):
        ink, mask = owners == number, one.mask.pixels
        assert (ink & mask).sum() / (ink | mask).sum() > 0.6


@pytest.mark.parametrize("name", SEEDS)
def test_keypoints_are_at_the_centre_and_the_corners(client, name):
    scene, off = sample(name), []
    for one, true in zip(found(client, "pose", name), scene.keypoints(), strict=True):
        assert tuple(point.name for point in one.keypoints) == KEYPOINTS
        places = np.array([(point.x, point.y) for point in one.keypoints])
        off.append(np.linalg.norm(places - true, axis=1) / np.linalg.norm(true[3] - true[1]))
    assert np.max(off) < 0.2
    assert np.mean(off) < 0.07


@pytest.mark.parametrize("name", SEEDS)
def test_rectangles_are_turned_as_the_digits(client, name):
    scene, off = sample(name), []
    for one, (cx, cy, width, height, angle) in zip(
        found(client, "obb", name), scene.rotated.tolist(), strict=True
    ):
        longer, shorter = max(width, height), min(width, height)
        assert (one.rotated.cx, one.rotated.cy) == pytest.approx((cx, cy), abs=0.1 * longer)
        assert (one.rotated.w, one.rotated.h) == pytest.approx((longer, shorter), rel=0.2)
        of_width = angle if width > height else angle + math.pi / 2
        off.append(abs((one.rotated.angle - of_width + math.pi / 2) % math.pi - math.pi / 2))
    # Upright rectangles would be off by the turns themselves.
    assert np.max(off) < math.radians(20)
    assert np.mean(off) < 0.75 * np.abs(scene.rotated[:, 4]).mean()


def test_the_digit_is_the_first_class(client):
    [label] = sample(DIGIT).labels
    first, *_ = client.predict("classify", DEMO / DIGIT).image.classes
    assert first.class_name == CLASS_NAMES[label]
    assert first.score > 0.8
