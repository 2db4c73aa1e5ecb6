"""PP-OCR's recogniser, served: the text of lines that Pillow draws, as of its own program."""

import io

import numpy as np
import onnxruntime
import pytest
from PIL import Image, ImageDraw, ImageFont
from tests.built import build
from tests.rapidocr import VISION
from tests.serving import start_server

from fovea_client import Client
from fovea_engines.build.plan import BuildPlan

MODEL = VISION / "rapidocr" / "models" / "PP-OCRv6_rec_small.onnx"
LINES = ("Fovea reads 123", "Plate AB-12 CD", "hello, world!", "INVOICE 2026/11", "+49 (30) 1234")
SIZE = (48, 640)
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not MODEL.exists(), reason=f"{MODEL} is absent: `make test-real` installs it"
    ),
]


def drawn(text):
    """Pixels of a line, RGB, of the height that the network takes."""
    font = ImageFont.load_default(34)
    image = Image.new("RGB", (SIZE[1], SIZE[0]), "white")
    ImageDraw.Draw(image).text((8, 2), text, fill="black", font=font)
    return image


def by_hand(session, pixels, labels):
    """The text and the mean score, with plain ONNX Runtime."""
    row = (np.asarray(pixels)[..., ::-1].transpose(2, 0, 1)[None] / 255 - 0.5) / 0.5
    [steps] = session.run(None, {"x": row.astype(np.float32)})[0]
    best, characters = steps.argmax(axis=1), ["", *labels, " "]
    kept = [i for i, at in enumerate(best) if at and (i == 0 or best[i - 1] != at)]
    return "".join(characters[best[i]] for i in kept), steps.max(axis=1)[kept].mean()


def test_lines_are_those_of_a_loop_by_hand(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reading")
    build(BuildPlan(MODEL, "words", folder / "r", "openvino"))
    session = onnxruntime.InferenceSession(MODEL)
    server = start_server(folder / "r", tmp_path_factory.mktemp("log"))
    with Client(server.url) as client:
        labels = client.model("words").labels
        for text in LINES:
            image = drawn(text)
            file = io.BytesIO()
            image.save(file, "PNG")
            found = client.predict("words", file.getvalue()).image.reading
            want, score = by_hand(session, image, labels)
            assert found.text == want == text
            assert found.score == pytest.approx(score, abs=1e-3)
    assert server.stop() == 0
