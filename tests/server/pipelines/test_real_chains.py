"""Pipelines on real images find what chains by hand find."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from onnx import helper
from tests.built import build
from tests.conftest import DEMO
from tests.engines import reference
from tests.engines.tiny import constant, save
from tests.server.pipelines import by_hand
from tests.server.pipelines.conftest import write_pipeline
from tests.serving import start_server
from tools.demo_models.plates import CHARACTERS, SAMPLE, draw

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan
from fovea_engines.heads.presets import read_preprocess

pytestmark = pytest.mark.real


# A network of faces with weights that nobody trained: equal faces have equal vectors.


SIDE = 112
VECTOR = 64


def faces(path: Path) -> Path:
    """Write three strided convolutions and a matrix."""
    random = np.random.default_rng(9)
    nodes, weights, last, channels = [], [], "face", 3
    for at, out in enumerate((16, 32, 32)):
        kernel = random.normal(0, (2 / (9 * channels)) ** 0.5, (out, channels, 3, 3))
        weights.append(constant(f"kernel{at}", kernel.astype(np.float32)))
        nodes += [
            helper.make_node(
                "Conv", [last, f"kernel{at}"], [f"conv{at}"], strides=[2, 2], pads=[1] * 4
            ),
            helper.make_node("Relu", [f"conv{at}"], [f"relu{at}"]),
        ]
        last, channels = f"relu{at}", out
    flat = channels * (SIDE // 8) ** 2
    matrix = random.normal(0, flat**-0.5, (flat, VECTOR)).astype(np.float32)
    weights.append(constant("matrix", matrix))
    nodes += [
        helper.make_node("Flatten", [last], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["embedding"]),
    ]
    inputs = [("face", ["batch", 3, SIDE, SIDE])]
    return save(path, nodes, inputs, [("embedding", ["batch", VECTOR])], weights)


PLATE = (32, 128)
SCENE = (480, 640)
STRIDE = 8


def yellow_plates(path: Path) -> Path:
    """Write a detector in YOLOv8's layout that finds yellow rectangles of 32 x 128 pixels.

    They are found by cells at stride 8 whose middles are theirs; those of 16 and 32 find nothing.
    """
    high, wide = PLATE
    rows, columns = SCENE[0] // STRIDE, SCENE[1] // STRIDE
    cells, others = rows * columns, rows * columns // 4 + rows * columns // 16
    # What is yellow has red and no blue: the mean of the difference over a rectangle.
    kernel = np.zeros((1, 3, high, wide), np.float32)
    kernel[0, 0], kernel[0, 2] = 1 / (high * wide), -1 / (high * wide)
    y, x = np.mgrid[:rows, :columns] * STRIDE + STRIDE / 2
    boxes = np.zeros((1, 4, cells + others), np.float32)
    boxes[0, :, :cells] = np.stack([x, y, 0 * x + wide, 0 * x + high]).reshape(4, -1)
    boxes[0, :, cells:] = np.array([320, 240, 160, 96])[:, None]
    top, left = (high - STRIDE) // 2, (wide - STRIDE) // 2
    weights = [
        constant("kernel", kernel),
        constant("boxes", boxes),
        constant("nothing", np.zeros((1, 1, others), np.float32)),
        constant("least", np.float32(0)),
        constant("most", np.float32(1)),
        constant("flat", np.array([1, 1, cells])),
    ]
    window = {"strides": [STRIDE, STRIDE], "pads": [top, left, top, left]}
    nodes = [
        helper.make_node("Conv", ["images", "kernel"], ["heat"], **window),
        helper.make_node("Clip", ["heat", "least", "most"], ["scores"]),
        helper.make_node("Reshape", ["scores", "flat"], ["columns"]),
        helper.make_node("Concat", ["columns", "nothing"], ["all"], axis=2),
        helper.make_node("Concat", ["boxes", "all"], ["output0"], axis=1),
    ]
    metadata = {"task": "detect", "stride": "32", "names": "{0: 'plate'}"}
    outputs = [("output0", [1, 5, cells + others])]
    return save(path, nodes, [("images", [1, 3, *SCENE])], outputs, weights, metadata=metadata)


# The overlap at which each family's own program drops the weaker of two faces.
FACES = {"yunet-n-dynamic": 0.45, "centerface": 0.3, "retinaface-mnet025": 0.45}
FACE = '[[stages]]\nmodel = "{}"\n[[stages]]\nmodel = "face"\ncrop = "keypoints"\n'
PLATES = '[[stages]]\nmodel = "plates"\n[[stages]]\nmodel = "reader"\n'


READER = DEMO / "plates-read.onnx"
# Seeds of plates that the reader was not trained on.
HELDOUT = range(7_000_000, 7_000_030)
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
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("chains")


@pytest.fixture(scope="module")
def client(shared, files, folder):
    repository = folder / "r"
    levels = {"fit": "stretch", "channels": "BGR", "scale": 1.0}
    levels |= {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    plans = {"vehicle": {"labels": sum(LABELS, ())}, "person": {"preprocess": levels}}
    for name, source in files.items():
        backend = "openvino" if name == "person" else "onnxruntime"
        build(BuildPlan(source, name, repository, backend, **plans.get(name, {})))
    write_pipeline(repository, "street", PIPELINE)
    for name in FACES:
        source = shared / "models" / "heads" / f"{name}.onnx"
        own = {"size": (640, 640), "preprocess": read_preprocess("family")}
        build(BuildPlan(source, name, repository, "onnxruntime", **own))
        write_pipeline(repository, f"{name}-faces", FACE.format(name))
    half = {"preprocess": {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}}
    build(BuildPlan(faces(folder / "face.onnx"), "face", repository, "onnxruntime", **half))
    build(BuildPlan(yellow_plates(folder / "plates.onnx"), "plates", repository, "onnxruntime"))
    build(BuildPlan(READER, "reader", repository, "onnxruntime"))
    write_pipeline(repository, "cars", PLATES)
    server = start_server(repository, folder)
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
        objects = reference.detect(by_hand.session(files["yolov8n"]), "yolov8", image, 0.25)
        found = client.predict("street", sent).detections
        for each, mine in zip(found, objects, strict=True):
            assert each.class_id == mine["class_id"]
            np.testing.assert_allclose(each.score, mine["score"], atol=1e-3)
            box = each.box.x1, each.box.y1, each.box.x2, each.box.y2
            np.testing.assert_allclose(box, mine["box"], atol=0.05)
            crop = by_hand.cut(image, mine["box"])
            scores = by_hand.imagenet(files["imagenet"], crop)
            assert each.classes[0].class_id == scores.argmax()
            for one in each.classes:
                assert one.score == pytest.approx(scores[one.class_id], abs=1e-3)
            assert bool(each.attributes) == (each.class_name in ("car", "bus", "truck"))
            first = 0
            for own, labels in zip(each.attributes, LABELS, strict=False):
                wanted = by_hand.vehicle(files["vehicle"], crop)[own.name]
                assert own.classes[0].class_name == labels[int(wanted.argmax())]
                for one in own.classes:
                    assert one.score == pytest.approx(wanted[one.class_id - first], abs=1e-3)
                seen["vehicle"] += 1
                first += len(labels)
            wide = min(box[2] - box[0], box[3] - box[1]) >= 32
            assert (each.embedding is not None) == (each.class_name == "person" and wide)
            if each.embedding is not None:
                vector = by_hand.person(files["person"], crop)
                np.testing.assert_allclose(each.embedding.vector, vector, atol=1e-3)
                seen["person"] += 1
    assert seen["vehicle"] >= 4
    assert seen["person"] == 4


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
        crop = by_hand.upright(bus, points)
        np.testing.assert_allclose(
            each.embedding.vector, by_hand.face(folder / "face.onnx", crop), atol=5e-3
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
    plates = by_hand.session(folder / "plates.onnx")
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
            text, score = by_hand.plate(READER, by_hand.cut(image, mine["box"]))
            assert each.text.text == text
            assert each.text.score == pytest.approx(score, abs=1e-3)
        right += len(set(texts).intersection(each.text.text for each in found))
    assert right >= 15


def test_texts_of_single_plates(client):
    right = 0
    for seed in HELDOUT:
        plate = draw(seed)
        pixels = np.ascontiguousarray(plate.pixels[..., ::-1])
        found = client.predict("reader", cv2.imencode(".png", pixels)[1].tobytes()).image.reading
        text, score = by_hand.plate(READER, pixels)
        assert found.text == text
        assert found.score == pytest.approx(score, abs=1e-3)
        right += text == plate.text
    assert right >= 0.9 * len(HELDOUT)
    assert client.model("reader").labels == tuple(CHARACTERS)
    assert client.predict("reader", DEMO / "plate.jpg").image.reading.text == draw(SAMPLE).text
