"""What Fovea says of crops is what loops by hand say: scores, vectors, classes."""

import json

import cv2
import numpy as np
import pytest
from tests.built import build
from tests.server.pipelines import loops
from tests.server.pipelines.networks import faces
from tests.serving import start_server

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan

pytestmark = pytest.mark.real

CARS, PEOPLE = (2, 5, 7), (0,)
TYPES = ("car", "van", "truck", "bus")
COLOURS = ("white", "gray", "yellow", "red", "green", "blue", "black")


@pytest.fixture(scope="module")
def models(shared, tmp_path_factory):
    """The files of the second models by name."""
    own, chains = tmp_path_factory.mktemp("own"), shared / "models" / "chains"
    return {
        "vehicle": chains / "vehicle-attributes-recognition-barrier-0039.onnx",
        "person": chains / "person-reidentification-retail-0267.onnx",
        "imagenet": shared / "models" / "mobilenetv2.onnx",
        "face": faces(own / "faces.onnx"),
    }


@pytest.fixture(scope="module")
def client(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chains")
    plain = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    levels = {"fit": "stretch", "channels": "BGR", "scale": 1.0, **plain}
    plans = {
        "vehicle": {"labels": (*TYPES, *COLOURS)},
        "person": {"preprocess": levels},
        "face": {"preprocess": {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}},
    }
    for name, source in models.items():
        backend = "openvino" if name == "person" else "onnxruntime"
        build(BuildPlan(source, name, folder / "r", backend, **plans.get(name, {})))
    server = start_server(folder / "r", tmp_path_factory.mktemp("log"))
    with Client(server.url) as asking:
        yield asking
    assert server.stop() == 0


def png(pixels):
    return cv2.imencode(".png", pixels)[1].tobytes()


def test_types_and_colours_of_cars(shared, models, client):
    video = shared / "data" / "video" / "car-detection.mp4"
    found = [
        each
        for frame in loops.frames(video, 205, 230)
        for each in loops.chain(
            shared / "models" / "yolov8n.onnx", frame, CARS,
            lambda crop: loops.vehicle(models["vehicle"], crop),
        )
    ]  # fmt: skip
    assert len(found) >= 3
    for each in found:
        for own in client.predict("vehicle", png(each.crop), top_k=7).image.attributes:
            labels, first = (TYPES, 0) if own.name == "type" else (COLOURS, len(TYPES))
            scores = each.said[own.name]
            assert own.classes[0].class_name == labels[int(scores.argmax())]
            for one in own.classes:
                assert one.score == pytest.approx(scores[one.class_id - first], abs=1e-3)


def test_vectors_of_people(shared, models, client):
    bus = cv2.imread(str(shared / "data" / "bus.jpg"))
    found = loops.chain(
        shared / "models" / "yolov8n.onnx", bus, PEOPLE,
        lambda crop: loops.person(models["person"], crop),
    )  # fmt: skip
    assert len(found) == 4
    for each in found:
        own = client.predict("person", png(each.crop)).image.embedding
        np.testing.assert_allclose(own.vector, each.said, atol=1e-3)


def test_classes_of_objects(shared, models, client):
    bus = cv2.imread(str(shared / "data" / "bus.jpg"))
    found = loops.chain(
        shared / "models" / "yolov8n.onnx", bus, range(80),
        lambda crop: loops.imagenet(models["imagenet"], crop),
    )  # fmt: skip
    assert len(found) == 5
    for each in found:
        own = client.predict("imagenet", png(each.crop)).image.classes
        assert [one.class_id for one in own] == [class_id for class_id, _ in each.said]
        scores = [score for _, score in each.said]
        np.testing.assert_allclose([one.score for one in own], scores, atol=1e-3)


@pytest.mark.parametrize("name", ["yunet-n-dynamic", "centerface", "retinaface-mnet025"])
def test_vectors_of_faces(shared, models, client, name):
    rows = json.loads((shared / "models" / "heads" / f"{name}.expected.json").read_text())["images"]
    bus = cv2.imread(str(shared / "data" / "bus.jpg"))
    vectors = []
    for row in rows["bus.jpg"]:
        crop = loops.upright(bus, np.array(row["keypoints"]).reshape(5, -1)[:, :2])
        vectors.append(loops.face(models["face"], crop))
        own = client.predict("face", png(crop)).image.embedding
        np.testing.assert_allclose(own.vector, vectors[-1], atol=1e-3)
    assert len(vectors) == 2
    assert vectors[0] @ vectors[1] < 0.99
