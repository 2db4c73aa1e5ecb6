"""What a pipeline says of real images is what loops by hand say."""

import cv2
import numpy as np
import pytest
from tests.built import build
from tests.engines import reference
from tests.server.pipelines import loop
from tests.server.pipelines.conftest import write_pipeline
from tests.serving import start_server

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan

pytestmark = pytest.mark.real

LABELS = (
    ("car", "van", "truck", "bus"),
    (*("white", "gray", "yellow", "red", "green", "blue", "black"),),
)
PIPELINE = """
[[stages]]
model = "yolov8n"

[[stages]]
name = "kind"
model = "vehicle"
classes = ["car", "bus", "truck"]
top_k = 7

[[stages]]
model = "person"
classes = ["person"]
min_size = 32

[[stages]]
model = "imagenet"
"""


@pytest.fixture(scope="module")
def files(shared):
    chains = shared / "models" / "chains"
    return {
        "yolov8n": shared / "models" / "yolov8n.onnx",
        "vehicle": chains / "vehicle-attributes-recognition-barrier-0039.onnx",
        "person": chains / "person-reidentification-retail-0267.onnx",
        "imagenet": shared / "models" / "mobilenetv2.onnx",
    }


@pytest.fixture(scope="module")
def client(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chains")
    levels = {"fit": "stretch", "channels": "BGR", "scale": 1.0}
    levels |= {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    plans = {"vehicle": {"labels": sum(LABELS, ())}, "person": {"preprocess": levels}}
    for name, source in files.items():
        backend = "openvino" if name == "person" else "onnxruntime"
        build(BuildPlan(source, name, folder / "r", backend, **plans.get(name, {})))
    write_pipeline(folder / "r", "street", PIPELINE)
    server = start_server(folder / "r", folder)
    with Client(server.url) as asking:
        yield asking
    assert server.stop() == 0


@pytest.fixture(scope="module")
def images(shared):
    """A street with a bus and people, and two frames with cars."""
    video = cv2.VideoCapture(str(shared / "data" / "video" / "car-detection.mp4"))
    frames = [video.read()[1] for _ in range(231)]
    return [cv2.imread(str(shared / "data" / "bus.jpg")), frames[205], frames[230]]


def test_all_that_three_models_say(images, files, client):
    seen = {"vehicle": 0, "person": 0}
    for image in images:
        sent = cv2.imencode(".png", image)[1].tobytes()
        objects = reference.detect(loop.session(files["yolov8n"]), "yolov8", image, 0.25)
        found = client.predict("street", sent).detections
        for each, mine in zip(found, objects, strict=True):
            assert each.class_id == mine["class_id"]
            np.testing.assert_allclose(each.score, mine["score"], atol=1e-3)
            box = each.box.x1, each.box.y1, each.box.x2, each.box.y2
            np.testing.assert_allclose(box, mine["box"], atol=0.05)
            crop = loop.cut(image, mine["box"])
            scores = loop.imagenet(files["imagenet"], crop)
            assert each.classes[0].class_id == scores.argmax()
            for one in each.classes:
                assert one.score == pytest.approx(scores[one.class_id], abs=1e-3)
            assert bool(each.attributes) == (each.class_name in ("car", "bus", "truck"))
            first = 0
            for own, labels in zip(each.attributes, LABELS, strict=False):
                wanted = loop.vehicle(files["vehicle"], crop)[own.name]
                assert own.classes[0].class_name == labels[int(wanted.argmax())]
                for one in own.classes:
                    assert one.score == pytest.approx(wanted[one.class_id - first], abs=1e-3)
                seen["vehicle"] += 1
                first += len(labels)
            wide = min(box[2] - box[0], box[3] - box[1]) >= 32
            assert (each.embedding is not None) == (each.class_name == "person" and wide)
            if each.embedding is not None:
                vector = loop.person(files["person"], crop)
                np.testing.assert_allclose(each.embedding.vector, vector, atol=1e-3)
                seen["person"] += 1
    assert seen["vehicle"] >= 4
    assert seen["person"] == 4
