"""Images that a server cuts into tiles."""

import io

import cv2
import httpx
import numpy as np
import pytest
import tritonclient.http
from PIL import Image

from fovea_client import Client
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_preprocess.image import decode_image


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
    ],
)
def test_what_cannot_be_cut_says_why(demo_server, large, query, message):
    url = f"{demo_server.predict_url('digits')}?{query}"
    answer = httpx.post(url, content=large[0])
    assert answer.status_code == 422
    assert message in answer.json()["error"]["message"]


def test_a_damaged_image_is_refused_as_without_tiles(demo_server, large):
    url = demo_server.predict_url("digits")
    for image in (large[0][:-1000], b"text"):
        with_tiles, without = (
            httpx.post(url + query, content=image) for query in ("?tile=320", "")
        )
        assert with_tiles.status_code == without.status_code >= 400
        assert with_tiles.json() == without.json()
