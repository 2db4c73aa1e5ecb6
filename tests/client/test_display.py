"""Predictions in a notebook, read as a browser reads them."""

import base64
import io
import json
import pickle
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from faster_coco_eval.core import mask as coco
from PIL import Image

from fovea_client import (
    Box,
    Client,
    Corner,
    Detection,
    ImageError,
    ImageResult,
    Prediction,
    RunLengths,
    ScoredClass,
)
from fovea_client.testing import FakeServer

BOX = Box(2.0, 3.0, 12.0, 9.0)
HOSTILE = '<script>alert("1")</script>'
PIXELS = np.random.default_rng(0).integers(0, 2, (16, 20)).astype(np.uint8)


class Page(HTMLParser):
    """The elements of a text, and the words between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all_of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def shown(prediction: Prediction) -> Page:
    return Page(prediction._repr_html_())


def predict(image: object, *found: Detection) -> Prediction:
    server = FakeServer({"m": ImageResult(20, 16, 1, found, classes=(ScoredClass(0, "a&b", 0.5),))})
    with Client("http://fake", transport=server) as client:
        return client.predict("m", image)  # type: ignore[arg-type]


def painted(path: str) -> np.ndarray:
    """Pixels of rectangles M x y h1 V end h-1 z."""
    pixels = np.zeros((16, 20), np.uint8)
    for run in filter(None, path.split("M")):
        (x, begin), end = (
            map(int, run.split("h1V")[0].split()),
            int(run.split("V")[1].split("h")[0]),
        )
        pixels[begin:end, x] += 1
    return pixels


def test_boxes_lie_over_the_image_and_names_are_no_markup(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    Image.new("RGB", (20, 16)).save(path)
    page = shown(predict(path, Detection(BOX, 0.875, 3, HOSTILE)))
    [image] = page.all_of("img")
    assert base64.b64decode((image["src"] or "").partition(",")[2]) == path.read_bytes()
    assert page.all_of("svg")[0]["viewbox"] == "0 0 20 16"
    [box] = page.all_of("polygon")
    assert box["points"] == "2.0,3.0 12.0,3.0 12.0,9.0 2.0,9.0"
    assert not page.all_of("script")
    assert f"{HOSTILE} 0.88" in "".join(page.words)
    assert "a&b 0.50" in page.words


def test_masks_of_every_form_have_their_pixels() -> None:
    written = coco.encode(np.asfortranarray(PIXELS))
    file = io.BytesIO()
    Image.fromarray(PIXELS * 255).save(file, "PNG")
    lengths = RunLengths((16, 20), written["counts"].decode())
    page = shown(
        predict(
            b"image",
            Detection(BOX, 0.9, 0, "a", mask=lengths),
            Detection(BOX, 0.9, 0, "b", mask=((1.0, 2.0, 3.0, 2.0, 3.0, 4.0),)),
        )
    )
    [path] = page.all_of("path")
    assert (painted(path["d"] or "") == PIXELS).all()
    assert "1.0,2.0 3.0,2.0 3.0,4.0" in [each["points"] for each in page.all_of("polygon")]


def test_rotated_boxes_have_their_corners() -> None:
    corners = tuple(Corner(x, y) for x, y in ((5, 1), (9, 5), (5, 9), (1, 5)))
    page = shown(predict(b"image", Detection(BOX, 0.9, 0, "ship", corners=corners)))
    assert [each["points"] for each in page.all_of("polygon")] == [
        "5.0,1.0 9.0,5.0 5.0,9.0 1.0,5.0"
    ]


def pixels_of(prediction: Prediction) -> np.ndarray:
    [image] = shown(prediction).all_of("img")
    data = str(image["src"]).partition("base64,")[2]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_an_array_is_shown_also_when_it_is_gone() -> None:
    frame = np.random.default_rng(1).integers(0, 255, (16, 20, 3), np.uint8)
    for image in (frame, frame.copy(), Image.fromarray(frame)):
        np.testing.assert_array_equal(pixels_of(predict(image)), frame)
    # A large one is kept in the size that a page has room for.
    assert pixels_of(predict(np.zeros((3000, 4000, 3), np.uint8))).shape == (750, 1000, 3)


def test_clients_and_models_are_a_line() -> None:
    with Client("http://fake/", api_key="fov_secret") as client:
        assert repr(client) == "Client('http://fake')"


def test_a_file_that_is_gone_leaves_the_boxes(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    path.write_bytes(b"image")
    prediction = predict(path, Detection(BOX, 0.9, 0, "a"))
    path.unlink()
    page = shown(prediction)
    assert not page.all_of("img")
    assert page.all_of("polygon")


def test_several_images_an_error_and_an_address() -> None:
    def told(image: bytes | str) -> ImageResult | ImageError:
        return ImageError("invalid_image", HOSTILE) if image == b"bad" else ImageResult(2, 1, 1, ())

    with Client("http://fake", transport=FakeServer({"m": told})) as client:
        page = shown(client.predict("m", [b"good", b"bad", "http://host/a?b=1&c=2"]))
    assert [each["src"] for each in page.all_of("img")][1:] == ["http://host/a?b=1&c=2"]
    assert HOSTILE in page.words


def test_a_prediction_can_be_pickled() -> None:
    prediction = predict(np.zeros((16, 20, 3), np.uint8), Detection(BOX, 0.9, 0, "a"))
    copy = pickle.loads(pickle.dumps(prediction))
    assert copy == prediction
    assert shown(copy).all_of("polygon")


def test_a_prediction_can_be_dumped_as_json() -> None:
    prediction = predict(b"image", Detection(BOX, 0.9, 0, "bus"))
    assert json.loads(json.dumps(asdict(prediction)))["images"][0]["width"] == 20
    assert replace(prediction) == prediction
