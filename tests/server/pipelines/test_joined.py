"""Faces and plates through pipelines: what the chains by hand say of the same images."""

import json

import cv2
import numpy as np
import pytest
from tests.built import build
from tests.engines import reference
from tests.server.pipelines import loops
from tests.server.pipelines.conftest import write_pipeline
from tests.server.pipelines.networks import PLATE, SCENE, STRIDE, faces, yellow_plates
from tests.server.pipelines.test_plates import MODEL, by_hand
from tests.serving import start_server
from tools.demo_models.plates import draw

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan
from fovea_engines.heads.presets import read_preprocess

pytestmark = pytest.mark.real

# The overlap at which each family's own program drops the weaker of two faces.
FACES = {"yunet-n-dynamic": 0.45, "centerface": 0.3, "retinaface-mnet025": 0.45}
FACE = '[[stages]]\nmodel = "{}"\n[[stages]]\nmodel = "face"\ncrop = "keypoints"\n'
PLATES = '[[stages]]\nmodel = "plates"\n[[stages]]\nmodel = "reader"\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("joined")


@pytest.fixture(scope="module")
def client(shared, folder):
    half = {"preprocess": {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}}
    repository = folder / "r"
    for name in FACES:
        source = shared / "models" / "heads" / f"{name}.onnx"
        own = {"size": (640, 640), "preprocess": read_preprocess("family")}
        build(BuildPlan(source, name, repository, "onnxruntime", **own))
        write_pipeline(repository, f"{name}-faces", FACE.format(name))
    build(BuildPlan(faces(folder / "face.onnx"), "face", repository, "onnxruntime", **half))
    build(BuildPlan(yellow_plates(folder / "plates.onnx"), "plates", repository, "onnxruntime"))
    build(BuildPlan(MODEL, "reader", repository, "onnxruntime"))
    write_pipeline(repository, "cars", PLATES)
    server = start_server(repository, folder)
    with Client(server.url) as asking:
        yield asking
    assert server.stop() == 0


@pytest.mark.parametrize("name", FACES)
def test_vectors_of_faces(shared, folder, client, name):
    rows = json.loads((shared / "models" / "heads" / f"{name}.expected.json").read_text())["images"]
    bus = cv2.imread(str(shared / "data" / "bus.jpg"))
    sent = shared / "data" / "bus.jpg"
    found = client.predict(f"{name}-faces", sent, iou=FACES[name]).detections
    assert len(found) == len(rows["bus.jpg"]) == 2
    for each, row in zip(found, rows["bus.jpg"], strict=True):
        assert each.score == pytest.approx(row["score"], abs=1e-3)
        # The family's own program found the points.
        points = np.array(row["keypoints"]).reshape(5, -1)[:, :2]
        own = [(point.x, point.y) for point in each.keypoints]
        np.testing.assert_allclose(own, points, atol=0.1)
        crop = loops.upright(bus, points)
        np.testing.assert_allclose(
            each.embedding.vector, loops.face(folder / "face.onnx", crop), atol=5e-3
        )


def scene(number):
    """A photograph with three yellow plates, BGR, and their texts from top to bottom."""
    random = np.random.default_rng(number)
    image = cv2.GaussianBlur(random.integers(90, 160, (*SCENE, 3)).astype(np.uint8), (0, 0), 9)
    texts = []
    for at in range(3):
        plate = draw(8_000_000 + 3 * number + at, worn=False)
        grey = cv2.resize(plate.pixels, PLATE[::-1], interpolation=cv2.INTER_AREA).mean(axis=2)
        # Dark on yellow, whatever it was drawn in.
        grey = grey if np.median(grey) > 127 else 255 - grey
        share = np.interp(grey, (grey.min(), grey.max()), (0, 1))[..., None]
        # The middle of a plate is that of a cell.
        x = STRIDE * int(random.integers(0, (SCENE[1] - PLATE[1]) // STRIDE)) + STRIDE // 2
        y = STRIDE * (2 + 19 * at + int(random.integers(0, 12))) + STRIDE // 2
        image[y : y + PLATE[0], x : x + PLATE[1]] = share * np.array([20, 215, 250])
        texts.append(plate.text)
    return image, texts


def test_texts_of_plates(folder, client):
    right, asked = 0, {"conf": 0.4, "iou": 0.2}
    plates = loops.session(folder / "plates.onnx")
    for number in range(6):
        image, texts = scene(number)
        objects = reference.detect(plates, "yolov8", image, **asked)
        sent = cv2.imencode(".png", image)[1].tobytes()
        found = client.predict("cars", sent, **asked).detections
        assert len(found) == len(objects) >= 3
        for each, mine in zip(found, objects, strict=True):
            box = each.box.x1, each.box.y1, each.box.x2, each.box.y2
            np.testing.assert_allclose(box, mine["box"], atol=0.01)
            assert each.score == pytest.approx(mine["score"], abs=1e-3)
            text, score = by_hand(loops.cut(image, mine["box"]))
            assert each.text.text == text
            assert each.text.score == pytest.approx(score, abs=1e-3)
        right += len(set(texts).intersection(each.text.text for each in found))
    assert right >= 15
