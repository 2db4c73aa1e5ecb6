"""The demo reader of plates, served, against a loop by hand and against what was drawn."""

import cv2
import numpy as np
import pytest
from tests.conftest import DEMO
from tests.server.pipelines.loops import session
from tests.serving import start_server
from tools.demo_models.plates import CHARACTERS, HEIGHT, SAMPLE, WIDTH, draw

from fovea_client import Client

MODEL = DEMO / "plates-read.onnx"
HELDOUT = range(7_000_000, 7_000_030)
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plates")
    (folder / "r" / "plates" / "1").mkdir(parents=True)
    (folder / "r" / "plates" / "1" / "model.onnx").symlink_to(MODEL)
    server = start_server(folder / "r", folder)
    with Client(server.url) as asking:
        yield asking
    assert server.stop() == 0


def by_hand(pixels):
    """The text of BGR pixels, and the mean score of its characters."""
    height, width = pixels.shape[:2]
    scale = min(HEIGHT / height, WIDTH / width)
    size = int(width * scale), int(height * scale)
    row = np.full((HEIGHT, WIDTH, 3), 127, np.uint8)
    row[: size[1], : size[0]] = cv2.resize(pixels, size)
    given = (row.transpose(2, 0, 1)[None].astype(np.float32) / 255 - 0.5) / 0.5
    [steps] = session(MODEL).run(None, {"images": given})[0]
    best = steps.argmax(axis=1)
    kept = [i for i, at in enumerate(best) if at and (i == 0 or best[i - 1] != at)]
    score = steps.max(axis=1)[kept].mean() if kept else 0
    return "".join(CHARACTERS[best[i] - 1] for i in kept), score


def test_texts_and_scores_are_those_of_the_loop(client):
    right = 0
    for seed in HELDOUT:
        plate = draw(seed)
        pixels = np.ascontiguousarray(plate.pixels[..., ::-1])
        sent = cv2.imencode(".png", pixels)[1].tobytes()
        found = client.predict("plates", sent).image.reading
        text, score = by_hand(pixels)
        assert found.text == text
        assert found.score == pytest.approx(score, abs=1e-3)
        right += text == plate.text
    assert right >= 0.9 * len(HELDOUT)


def test_the_sample_is_read_and_the_network_is_small(client):
    assert MODEL.stat().st_size < MEGABYTE
    assert client.model("plates").labels == tuple(CHARACTERS)
    found = client.predict("plates", DEMO / "plate.jpg").image.reading
    assert found.text == draw(SAMPLE).text


def test_one_seed_is_one_plate():
    assert np.array_equal(draw(3).pixels, draw(3).pixels)
    assert draw(3).text != draw(4).text
