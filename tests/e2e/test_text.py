"""Lines of text on every route: those that RapidOCR finds with the same network."""

import re

import cv2
import httpx
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tests.built import build
from tests.listed import check_listed
from tests.rapidocr import PREPROCESS, TEXT_MODEL, off, program, written
from tests.serving import start_server

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan
from fovea_engines.results.rotated import corners
from fovea_server.http.v1.schemas import PredictAnswer

SIZE = (480, 640)
CONF = {"conf": 0.5}
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not TEXT_MODEL.exists(), reason=f"{TEXT_MODEL} is absent: `make test-real` installs it"
    ),
]


@pytest.fixture(scope="module")
def images(shared):
    """PNG files of the size of the engine: six lines, and the part of a photograph with lines."""
    bus = cv2.imread(str(shared / "data" / "bus.jpg"))[240:720, 160:800]
    drawn = {"lines": written(*SIZE)[..., ::-1], "photograph": bus}
    return {name: cv2.imencode(".png", pixels)[1].tobytes() for name, pixels in drawn.items()}


@pytest.fixture(scope="module")
def server(images, tmp_path_factory):
    folder, samples = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("images")
    (samples / "lines.png").write_bytes(images["lines"])
    plan = BuildPlan(
        TEXT_MODEL, "text", folder, size=SIZE, family="ppocr-det", images=samples,
        preprocess=PREPROCESS,
    )  # fmt: skip
    build(plan)
    running = start_server(folder, tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


def ask(server, image, **options):
    answer = httpx.post(
        server.predict_url("text"), content=image, params=CONF | options, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def outlines_of(answer):
    [image] = answer["images"]
    return [[(c["x"], c["y"]) for c in each["corners"]] for each in image["detections"]]


@pytest.mark.parametrize(("name", "least"), [("lines", 6), ("photograph", 3)])
def test_lines_are_those_of_rapidocr(server, images, monkeypatch, name, least):
    shaped, found_on = program(monkeypatch, least=min(SIZE))
    row = shaped(cv2.imdecode(np.frombuffer(images[name], np.uint8), cv2.IMREAD_COLOR))
    assert row.shape[2:] == SIZE
    session = onnxruntime.InferenceSession(TEXT_MODEL)
    [found_map] = session.run(None, {session.get_inputs()[0].name: row})
    expected, scores = found_on(found_map, SIZE)
    assert len(expected) >= least
    answer = ask(server, images[name])
    PredictAnswer.model_validate(answer, strict=True)
    assert answer["task"] == "text"
    assert not re.search(r"-0\.0\b", str(answer))
    found = np.clip(outlines_of(answer), 0, np.array(SIZE[::-1]) - 1)
    assert len(found) == len(expected)
    for outline, score in zip(expected, scores, strict=True):
        far, which = off(outline, found)
        assert far <= 1
        each = answer["images"][0]["detections"][which]
        assert each["score"] == pytest.approx(score, abs=1e-3)
        assert each["class_name"] == "text"


@pytest.mark.parametrize("protocol", [http_client, grpc_client], ids=["http", "grpc"])
def test_v2_has_the_lines_as_tensors(server, images, protocol):
    expected = ask(server, images["lines"])
    port = server.port if protocol is http_client else server.grpc_port
    given = protocol.InferInput("x", [1], "BYTES")
    given.set_data_from_numpy(np.array([images["lines"]], object))
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:
        answer = client.infer("text", [given], parameters=CONF)
    check_listed(server, "text", answer)
    found = corners(answer.as_numpy("rotated")[0])
    assert np.allclose(found, outlines_of(expected), atol=0.02)
    assert set(answer.as_numpy("class_names")[0]) == {b"text"}
    scores = [each["score"] for each in expected["images"][0]["detections"]]
    assert answer.as_numpy("scores")[0] == pytest.approx(scores, abs=1e-4)


def test_the_client_has_corners_in_the_order_of_reading(server, images):
    with Client(server.url) as client:
        prediction = client.predict("text", images["lines"], **CONF)
        drawing = client.annotate("text", images["lines"], **CONF)
    assert prediction.task == "text"
    for found in prediction.detections:
        first, second, _, last = found.corners
        steep = abs(second.y - first.y) > abs(second.x - first.x)
        # To the right, and downwards if it is steep.
        assert (second.y > first.y) if steep else (second.x > first.x)
        assert (last.x < first.x) if steep else (last.y > first.y)
    pixels = cv2.imdecode(np.frombuffer(drawing, np.uint8), cv2.IMREAD_COLOR)
    assert pixels.shape == (*SIZE, 3)
    assert np.abs(pixels.astype(int) - written(*SIZE)[..., ::-1]).max() > 100


def test_tiles_would_cut_lines_off(server, images):
    answer = httpx.post(
        server.predict_url("text"), content=images["lines"], params={"tile": "2x2"}, timeout=60
    )
    assert answer.status_code == 422
    assert "whose task is text" in answer.text
