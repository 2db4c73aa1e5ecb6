"""Lines of text and what is written in them: as RapidOCR finds them with the same networks."""

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from PIL import Image, ImageDraw, ImageFont
from tests.built import build
from tests.e2e.conftest import images
from tests.e2e.results import png
from tests.listed import check_listed, check_tensors
from tests.rapidocr import PREPROCESS, TEXT_MODEL, off, program, written
from tests.serving import start_server

from fovea_client import ServerError
from fovea_engines.build.plan import BuildPlan
from fovea_engines.evaluation.samples import read_image
from fovea_preprocess.image import decode_image

READER = TEXT_MODEL.with_name("PP-OCRv6_rec_small.onnx")
TEXTS = ("Fovea reads 123", "Plate AB-12 CD", "hello, world!", "INVOICE 2026/11", "+49 (30) 1234")
SIZE = (480, 640)
CONF = {"conf": 0.5}
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not TEXT_MODEL.exists(), reason=f"{TEXT_MODEL} is absent: `make test-real` installs it"
    ),
]


@pytest.fixture(scope="module")
def pages(shared):
    """Pixels of the size of the engine: six lines, and the part of a photograph with lines."""
    bus = read_image(shared / "data" / "bus.jpg")[240:720, 160:800]
    return {"lines": written(*SIZE), "photograph": bus}


@pytest.fixture(scope="module")
def server(pages, tmp_path_factory):
    folder, samples = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("images")
    (samples / "lines.png").write_bytes(png(pages["lines"]))
    given = {"family": "ppocr-det", "images": samples, "preprocess": PREPROCESS}
    build(BuildPlan(TEXT_MODEL, "text", folder, size=SIZE, **given))
    build(BuildPlan(READER, "words", folder, "openvino"))
    running = start_server(folder, tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


@pytest.mark.parametrize(("name", "least"), [("lines", 6), ("photograph", 3)])
def test_lines_are_those_of_rapidocr(client, pages, monkeypatch, name, least):
    shaped, found_on = program(monkeypatch, least=min(SIZE))
    row = shaped(pages[name][..., ::-1])
    assert row.shape[2:] == SIZE
    session = onnxruntime.InferenceSession(TEXT_MODEL)
    [found_map] = session.run(None, {session.get_inputs()[0].name: row})
    expected, scores = found_on(found_map, SIZE)
    assert len(expected) >= least
    found = client.predict("text", png(pages[name]), **CONF).detections
    outlines = np.array([[(c.x, c.y) for c in one.corners] for one in found])
    assert len(found) == len(expected)
    for outline, score in zip(expected, scores, strict=True):
        far, which = off(outline, np.clip(outlines, 0, np.array(SIZE[::-1]) - 1))
        assert far <= 1
        assert found[which].score == pytest.approx(score, abs=1e-3)
        assert found[which].class_name == "text"


def test_corners_are_in_the_order_of_reading(server, client, pages):
    image = png(pages["lines"])
    result = client.predict("text", image, **CONF).image
    for found in result.detections:
        first, second, _, last = found.corners
        steep = abs(second.y - first.y) > abs(second.x - first.x)
        # To the right, and downwards if it is steep.
        assert (second.y > first.y) if steep else (second.x > first.x)
        assert (last.x < first.x) if steep else (last.y > first.y)
    drawn = decode_image(client.annotate("text", image, **CONF)).pixels
    assert np.abs(drawn.astype(int) - pages["lines"]).max() > 100
    for protocol, port in ((http_client, server.port), (grpc_client, server.grpc_port)):
        with protocol.InferenceServerClient(f"127.0.0.1:{port}") as triton:
            answer = triton.infer("text", images(protocol, image, name="x"), parameters=CONF)
        check_listed(server, "text", answer)
        check_tensors(answer, [result])
    with pytest.raises(ServerError, match="whose task is text"):
        client.predict("text", image, tile="2x2")


def by_hand(session, pixels, labels):
    """The text and the mean score, with plain ONNX Runtime."""
    row = (pixels[..., ::-1].transpose(2, 0, 1)[None] / 255 - 0.5) / 0.5
    [steps] = session.run(None, {"x": row.astype(np.float32)})[0]
    best, characters = steps.argmax(axis=1), ["", *labels, " "]
    kept = [i for i, at in enumerate(best) if at and (i == 0 or best[i - 1] != at)]
    return "".join(characters[best[i]] for i in kept), steps.max(axis=1)[kept].mean()


def test_texts_are_those_of_a_loop_by_hand(client):
    session, labels = onnxruntime.InferenceSession(READER), client.model("words").labels
    for text in TEXTS:
        line = Image.new("RGB", (640, 48), "white")
        ImageDraw.Draw(line).text((8, 2), text, fill="black", font=ImageFont.load_default(34))
        found = client.predict("words", png(line)).image.reading
        want, score = by_hand(session, np.asarray(line), labels)
        assert found.text == want == text
        assert found.score == pytest.approx(score, abs=1e-3)
