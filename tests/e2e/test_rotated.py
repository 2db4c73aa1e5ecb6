"""Models of rotated boxes on every route: the rectangles of the family's own program."""

import io
import json
import math

import cv2
import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from PIL import Image
from tests.built import build
from tests.conftest import SHARED
from tests.engines.heads.expected import unmatched_rotated
from tests.listed import check_listed
from tests.serving import start_server
from typer.testing import CliRunner

from fovea_client import Client, Rotated
from fovea_engines.build.plan import BuildPlan
from fovea_server.cli.main import app
from fovea_server.http.v1.schemas import PredictAnswer

HEADS = SHARED / "models" / "heads"
SUPPRESSION = {"yolonas-obb": {"iou": 0.45}}
ROW = ("cx", "cy", "w", "h", "angle")
SERVED = {
    "openvino": ("yolo11-obb", "yolo26-obb", "yolonas-obb"),
    "onnxruntime": ("yolo11-obb", "yolo11-obb-nometa", "yolo26-obb", "yolonas-obb"),
}
MODELS = [(backend, name) for backend, names in SERVED.items() for name in names]
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not HEADS.is_dir(), reason=f"the collected models are absent: {HEADS} is not there"
    ),
]


@pytest.fixture(scope="module")
def bus(shared):
    return (shared / "data" / "bus.jpg").read_bytes()


@pytest.fixture(scope="module")
def server(shared, tmp_path_factory):
    """A server with models that were built, and with plain folders; its repository is `folder`."""
    folder = tmp_path_factory.mktemp("repository")
    images = tmp_path_factory.mktemp("images")
    (images / "bus.jpg").symlink_to(shared / "data" / "bus.jpg")
    for backend, name in MODELS:
        model, file = f"{name}-{backend}", HEADS / f"{name}.onnx"
        if backend == "openvino":
            build(BuildPlan(file, model, folder, backend, images=images))
        else:
            (folder / model / "1").mkdir(parents=True)
            (folder / model / "1" / "model.onnx").symlink_to(file)
    running = start_server(folder, tmp_path_factory.mktemp("log"))
    running.folder = folder
    yield running
    assert running.stop() == 0


def ask(server, model, image, **options):
    answer = httpx.post(server.predict_url(model), content=image, params=options, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def rows(found):
    return [[each["rotated"][name] for name in ROW] for each in found]


@pytest.mark.parametrize(("backend", "name"), MODELS)
def test_rectangles_are_those_of_the_family(server, shared, backend, name):
    stored = json.loads((HEADS / f"{name}.expected.json").read_text())["images"]
    options = {"conf": 0.245, **SUPPRESSION.get(name, {})}
    for image, expected in stored.items():
        path = shared / "data" / ("" if image == "bus.jpg" else "coco64/val") / image
        answer = ask(server, f"{name}-{backend}", path.read_bytes(), **options)
        assert answer["task"] == "obb"
        [shown] = answer["images"]
        found = shown["detections"]
        columns = zip(
            rows(found), [d["score"] for d in found], [d["class_id"] for d in found], strict=True
        )
        more = unmatched_rotated(columns, expected, (shown["height"], shown["width"]))
        assert not [row for row in more if row[1] > 0.251], f"{image}: more was found: {more}"


MODEL = "yolo26-obb-openvino"


def test_answers_fit_the_schema_also_where_nothing_is_found(server, bus):
    for conf in (0.25, 1):
        answer = ask(server, MODEL, bus, conf=conf)
        PredictAnswer.model_validate(answer, strict=True)
        assert bool(answer["images"][0]["detections"]) == (conf < 1)


def test_corners_and_the_upright_box_are_of_the_rectangle(server, bus):
    [image] = ask(server, MODEL, bus)["images"]
    for found in image["detections"]:
        cx, cy, w, h, angle = (found["rotated"][name] for name in ROW)
        assert w >= h
        assert -0.7854 <= angle < 2.3563
        points = np.array([[corner["x"], corner["y"]] for corner in found["corners"]])
        expected = cv2.boxPoints(((cx, cy), (w, h), math.degrees(angle)))
        assert all(np.abs(points - point).sum(axis=1).min() < 0.5 for point in expected)
        ahead = (points[1] + points[2]) / 2 - (cx, cy)
        assert np.allclose(ahead, [w / 2 * math.cos(angle), w / 2 * math.sin(angle)], atol=0.1)
        upright = np.concatenate([points.min(axis=0), points.max(axis=0)])
        upright = np.clip(upright, 0, [image["width"], image["height"]] * 2)
        assert np.allclose(list(found["box"].values()), upright, atol=0.1)


@pytest.mark.parametrize("orientation", [3, 5, 6, 8])
def test_rectangles_are_of_the_upright_image_whatever_its_orientation(server, bus, orientation):
    undo = {
        3: Image.Transpose.ROTATE_180,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
    }
    upright = Image.open(io.BytesIO(bus))
    files = [io.BytesIO(), io.BytesIO()]
    upright.save(files[0], "PNG")
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright.transpose(undo[orientation]).save(files[1], "PNG", exif=exif)
    want, have = (ask(server, MODEL, file.getvalue())["images"][0] for file in files)
    assert have["orientation"] == orientation
    assert have["detections"] == want["detections"] != []


@pytest.mark.parametrize("protocol", [http_client, grpc_client], ids=["http", "grpc"])
def test_v2_has_the_rows_as_a_tensor(server, bus, protocol):
    expected = [ask(server, MODEL, bus, max_det=most)["images"][0]["detections"] for most in (5, 5)]
    port = server.port if protocol is http_client else server.grpc_port
    images = protocol.InferInput("images", [2], "BYTES")
    images.set_data_from_numpy(np.array([bus, bus], object))
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:
        answer = client.infer(MODEL, [images], parameters={"max_det": 5})
    check_listed(server, MODEL, answer)
    rotated = answer.as_numpy("rotated")
    assert rotated.shape == (2, 5, 5)
    assert rotated.dtype == np.float32
    assert np.allclose(rotated, [rows(found) for found in expected], atol=0.01)


def test_the_client_has_rectangles_as_values(server, bus):
    stored = ask(server, MODEL, bus)["images"][0]["detections"]
    with Client(server.url) as client:
        found = client.predict(MODEL, bus).detections
    assert [each.rotated for each in found] == [Rotated(*row) for row in rows(stored)]
    assert [(each.x, each.y) for each in found[0].corners] == [
        (each["x"], each["y"]) for each in stored[0]["corners"]
    ]


def test_an_annotated_image_differs_from_one_with_upright_boxes(server, bus):
    answer = httpx.post(
        server.predict_url(MODEL), content=bus, headers={"accept": "image/png"}, timeout=60
    )
    pixels = cv2.imdecode(np.frombuffer(answer.content, np.uint8), cv2.IMREAD_COLOR)
    assert pixels.shape == (1080, 810, 3)
    plain = cv2.imdecode(np.frombuffer(bus, np.uint8), cv2.IMREAD_COLOR)
    [image] = ask(server, MODEL, bus)["images"]
    best = image["detections"][0]["corners"]
    middle = [round((best[1][name] + best[2][name]) / 2) for name in ("y", "x")]
    assert np.abs(pixels[*middle].astype(int) - plain[*middle]).max() > 30


@pytest.mark.parametrize("local", [True, False])
def test_the_command_shows_the_angle(server, shared, local):
    where = ["--repository", server.folder] if local else ["--url", server.url]
    arguments = ["predict", MODEL, shared / "data" / "bus.jpg", *where, "--max-det", 3]
    table = CliRunner().invoke(app, [str(each) for each in arguments])
    assert table.exit_code == 0, table.output
    assert "angle" in table.output
    assert table.output.count("°") == 3
    document = CliRunner().invoke(app, [str(each) for each in [*arguments, "--json"]])
    [image] = json.loads(document.output)["images"]
    assert len(image["detections"]) == 3
    assert all(each["rotated"]["w"] and len(each["corners"]) == 4 for each in image["detections"])


def test_accuracy_is_the_same_here_and_through_a_server(server, bus, tmp_path):
    [image] = ask(server, MODEL, bus)["images"]
    size = [image["width"], image["height"]]
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    (tmp_path / "images" / "bus.jpg").write_bytes(bus)
    outlines = [
        (found["class_id"], np.array([[c["x"], c["y"]] for c in found["corners"]]) / size)
        for found in image["detections"]
    ]
    inside = [(id_, each.ravel()) for id_, each in outlines if 0 <= each.min() <= each.max() <= 1]
    lines = [" ".join(map(str, [id_, *each])) for id_, each in inside]
    (tmp_path / "labels" / "bus.txt").write_text("\n".join(lines))
    figures = []
    for where in (["--repository", server.folder], ["--url", server.url]):
        arguments = ["eval", MODEL, "--data", tmp_path, *where, "--json"]
        told = CliRunner().invoke(app, [str(each) for each in arguments])
        assert told.exit_code == 0, told.output
        figures.append(json.loads(told.stdout))
    assert figures[0]["map50_95"] > 0.5
    assert figures[1]["map50_95"] == pytest.approx(figures[0]["map50_95"], abs=1e-3)
