"""Images that a server cuts into tiles."""

import io
import json

import cv2
import httpx
import numpy as np
import pytest
import tritonclient.http
from PIL import Image

from fovea_client import Client
from fovea_engines.engine import Engine
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.image import decode_image

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def large(scene):
    """A PNG file of a scene beside itself, so that a tile cuts through it, and its pixels."""
    pixels = decode_image(scene).pixels
    both = np.hstack([pixels, cv2.flip(pixels, 0)])
    file = io.BytesIO()
    Image.fromarray(both).save(file, "PNG")
    return file.getvalue(), both


@pytest.fixture(scope="module")
def expected(demo_repository, large):
    with Engine.open(demo_repository / "digits" / "1") as engine:
        return engine.detect(large[1], PredictOptions(tile="320", overlap=0.25))


def test_objects_are_those_of_the_engine(demo_server, large, expected):
    with Client(demo_server.url) as client:
        answer = client.predict("digits", large[0], tile=320, overlap=0.25)
    found = answer.detections
    assert len(found) == len(expected) > 0
    for have, box, score in zip(found, expected.boxes, expected.scores, strict=True):
        assert np.allclose([have.box.x1, have.box.y1, have.box.x2, have.box.y2], box, atol=0.02)
        assert have.score == pytest.approx(score, abs=1e-4)
    assert (answer.image.width, answer.image.height) == large[1].shape[1::-1]
    assert 0 < answer.timing_ms.infer < answer.timing_ms.total


def test_tensors_and_annotated_images_too(demo_server, large, expected):
    client = tritonclient.http.InferenceServerClient(demo_server.url.removeprefix("http://"))
    tensor = tritonclient.http.InferInput("images", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([large[0]], object))
    answer = client.infer("digits", [tensor], parameters={"tile": "320", "overlap": 0.25})
    assert answer.as_numpy("num_detections").tolist() == [len(expected)]
    shown = httpx.post(
        demo_server.predict_url("digits") + "?tile=320",
        content=large[0],
        headers={"Accept": "image/png"},
    )
    assert shown.headers["content-type"] == "image/png"
    assert decode_image(shown.content).pixels.shape == large[1].shape


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("tile=9", "side of a tile"),
        ("tile=2by2", "side of a tile"),
        ("tile=640&overlap=1", "from 0 to 0.9"),
        ("tile=64x64&overlap=0", "larger tiles"),
        ("overlap=.3", "overlap needs tile"),
        ("top_k=3", "top_k has no effect on model 'digits', whose task is detect"),
        ("mask=png", "mask=png has no effect on model 'digits'"),
    ],
)
def test_what_has_no_effect_says_why(demo_server, large, query, message):
    url = f"{demo_server.predict_url('digits')}?{query}"
    answer = httpx.post(url, content=large[0])
    assert answer.status_code == 422
    assert message in answer.json()["error"]["message"]


def test_accuracy_with_tiles(demo_server, demo_repository, scene, demo_truth, fovea, tmp_path):
    """Of a scene four times on one image tiles find what is found on the scene alone."""
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    pixels = np.tile(decode_image(scene).pixels, (2, 2, 1))
    Image.fromarray(pixels).save(tmp_path / "images" / "four.png")
    lines = []
    for digit in demo_truth["scene-1.jpg"]:
        x1, y1, x2, y2 = digit["box"]
        for left, top in ((0, 0), (640, 0), (0, 480), (640, 480)):
            box = (x1 + x2) / 2 + left, (y1 + y2) / 2 + top, x2 - x1, y2 - y1
            shares = np.divide(box, [1280, 960] * 2)
            lines.append(" ".join([digit["class_name"], *map(str, shares)]))
    (tmp_path / "labels" / "four.txt").write_text("\n".join(lines))
    words = ["eval", "digits", "--data", tmp_path, "--json"]
    found = {}
    for tiles in ((), ("--tile", "2x2", "--overlap", "0")):
        here, there = (
            json.loads(fovea(*words, *tiles, *where)[1])
            for where in (("--repository", demo_repository), ("--url", demo_server.url))
        )
        assert here["map50_95"] == pytest.approx(there["map50_95"], abs=2e-3)
        found[bool(tiles)] = here["map50_95"]
    assert found[True] > found[False] + 0.1
    code, _, err = fovea(*words, "--overlap", 0.3, "--url", demo_server.url)
    assert code == 2
    assert "overlap needs tile" in err


def test_options_that_every_answer_follows_are_taken(demo_server, large):
    query = "?overlap=0.2&top_k=5&mask=none"
    assert httpx.post(demo_server.predict_url("digits") + query, content=large[0]).is_success


def test_a_damaged_image_is_refused_as_without_tiles(demo_server, large):
    url = demo_server.predict_url("digits")
    for image in (large[0][:-1000], b"text"):
        with_tiles, without = (
            httpx.post(url + query, content=image) for query in ("?tile=320", "")
        )
        assert with_tiles.status_code == without.status_code >= 400
        assert with_tiles.json() == without.json()
