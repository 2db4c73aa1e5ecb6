"""Predictions in a notebook, read as a browser reads them."""

import base64
import io
import json
import os
import pickle
import subprocess
import sys
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from faster_coco_eval.core import mask as coco
from PIL import Image

from fovea_client import (
    Box,
    Client,
    Corner,
    Detection,
    ImageError,
    ImageResult,
    Outlines,
    Prediction,
    RunLengths,
    ScoredClass,
)
from fovea_client.testing import FakeServer
from fovea_engines.results.colours import colour

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


def predict(image: object, *found: Detection, size: tuple[int, int] = (20, 16)) -> Prediction:
    classes = (ScoredClass(0, "a&b", 0.5),)
    server = FakeServer({"m": ImageResult(*size, 1, found, classes=classes)})
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
    Image.new("RGB", (20, 16), "teal").save(path)
    page = shown(predict(path, Detection(BOX, 0.875, 3, HOSTILE)))
    assert len(page.all_of("img")) == 1
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
            Detection(BOX, 0.9, 0, "b", mask=Outlines((16, 20), ((1.0, 2.0, 3.0, 2.0, 3.0, 4.0),))),
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
    file = Image.open(io.BytesIO(base64.b64decode(str(image["src"]).partition("base64,")[2])))
    assert file.format == "JPEG"
    return np.asarray(file).astype(int)


def test_an_array_is_shown_also_when_it_is_gone() -> None:
    frame = np.full((16, 20, 3), (200, 90, 30), np.uint8)
    for image in (frame, frame.copy(), Image.fromarray(frame)):
        assert np.abs(pixels_of(predict(image)) - frame).max() < 4
    # A large one is kept in the size that a page has room for.
    large = predict(np.zeros((3000, 4000, 3), np.uint8), size=(4000, 3000))
    assert pixels_of(large).shape == (750, 1000, 3)


@pytest.mark.parametrize("without", [(), ("PIL",), ("PIL", "cv2")], ids=["all", "cv2", "none"])
def test_a_photo_is_shown_upright_in_the_size_of_a_page(
    without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "photo.jpg"
    photo = Image.radial_gradient("L").resize((4000, 3000)).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(path, exif=exif, quality=98)
    prediction = predict(path, size=(3000, 4000))
    for name in without:  # as where the package is not installed
        monkeypatch.setitem(sys.modules, name, None)
    [image] = shown(prediction).all_of("img")
    monkeypatch.undo()
    data = base64.b64decode(str(image["src"]).partition("base64,")[2])
    if without == ("PIL", "cv2"):
        assert data == path.read_bytes()
    else:
        assert Image.open(io.BytesIO(data)).size == (750, 1000)
        assert len(data) < path.stat().st_size / 5


SHOP = """
import numpy
from IPython.core.interactiveshell import InteractiveShell
from fovea_client import Client, ImageResult, Prediction
from fovea_client.testing import FakeServer

shell = InteractiveShell.instance()
server = FakeServer({"m": ImageResult(20, 16, 1, ())})
with Client("http://fake", transport=server) as client:
    frame = numpy.zeros((16, 20, 3), numpy.uint8)
    paths = list(client.predict_many("m", ["a.png"] * 30))
    for each in (
        client.predict("m", frame).image,
        [client.predict("m", frame), client.predict("m", frame)],
        client.predict("m", [frame, frame, frame]).images,
        paths,
        [1, 2],
        type("Own", (list,), {"_repr_html_": lambda self: "<img><img>"})(),
    ):
        shown, _ = shell.display_formatter.format(each)
        print(shown.get("text/html", "").count("<img"), "and 6 more" in shown.get("text/html", ""))
"""


def test_ipython_shows_images_and_lists_of_results(tmp_path: Path) -> None:
    pytest.importorskip("IPython", reason="ipython is not installed: `make test` installs it")
    Image.new("RGB", (20, 16)).save(tmp_path / "a.png")
    done = subprocess.run(
        [sys.executable, "-c", SHOP],
        cwd=tmp_path,
        env=os.environ | {"IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        *("1 False", "2 False", "3 False", "24 True", "0 False", "2 False")
    ], done.stderr


def rectangles(page: Page) -> list[tuple[float, float, float, float]]:
    boxes = [
        [float(each[k] or 0) for k in ("x", "y", "width", "height")] for each in page.all_of("rect")
    ]
    return [(x, y, x + wide, y + high) for x, y, wide, high in boxes]


def test_labels_lie_inside_the_image_and_apart() -> None:
    boxes = [Box(x, y, x + 90, y + 60) for x in (0, 280, 560, 600) for y in (0, 200, 410, 430)]
    found = [Detection(box, 0.85, n, "refrigerator") for n, box in enumerate(boxes)]
    server = FakeServer({"m": ImageResult(640, 480, 1, tuple(found))})
    with Client("http://fake", transport=server) as client:
        page = shown(client.predict("m", b"image"))
    labels = rectangles(page)
    assert len(labels) == len(found)
    for n, (x1, y1, x2, y2) in enumerate(labels):
        assert min(x1, y1) >= 0
        assert x2 <= 640.05
        assert y2 <= 480.05
        for other in labels[:n]:
            assert x1 >= other[2] or other[0] >= x2 or y1 >= other[3] or other[1] >= y2


def test_colours_are_those_of_the_server_also_of_persons_side_by_side() -> None:
    mask = Outlines((16, 20), ((2.0, 3.0, 12.0, 3.0, 12.0, 9.0),))
    beside = Box(12.0, 3.0, 19.0, 9.0)
    pair = (Detection(BOX, 0.9, 7, "person", mask), Detection(beside, 0.8, 7, "person", mask))
    page = shown(predict(b"image", *pair))
    strokes = [each["stroke"] for each in page.all_of("polygon") if each["fill"] == "none"]
    assert strokes == [f"rgb{colour(7, 1)}", f"rgb{colour(7)}"]
    fills = [each["fill"] for each in page.all_of("rect")]
    assert fills == strokes[::-1]


def test_classes_without_a_score_are_left_out() -> None:
    classes = (ScoredClass(0, "tabby", 0.995), ScoredClass(1, "lynx", 0.004))
    server = FakeServer({"m": ImageResult(20, 16, 1, (), classes=classes)})
    with Client("http://fake", transport=server) as client:
        words = shown(client.predict("m", b"image")).words
    assert words == ["tabby 0.99"]


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
