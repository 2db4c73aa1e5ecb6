"""The images of an index that are most like the one on the page, with their pictures and scores."""

import cv2
import numpy as np
import pytest
from tests.built import build
from tests.e2e.results import AS_IT_IS, COLOUR, embedder
from tests.serving import start_server

from fovea_engines.build.plan import BuildPlan

from .conftest import choose, opened, says

pytestmark = pytest.mark.browser

COLOURS = {"near.png": (195, 105, 55), "far.png": (10, 20, 240), "<b>odd</b>.png": (90, 190, 90)}


def write(path, colour):
    path.write_bytes(cv2.imencode(".png", np.full((30, 20, 3), colour[::-1], np.uint8))[1])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("similar")
    source = embedder(folder / "embedding.onnx")
    build(BuildPlan(source, "alike", folder / "r", "onnxruntime", preprocess=AS_IT_IS))
    running = start_server(folder / "r", folder)
    yield running, folder / "r"
    assert running.stop() == 0


def test_images_like_the_one_that_is_shown(browser, served, tmp_path, fovea):
    server, repository = served
    (tmp_path / "images").mkdir()
    for name, colour in COLOURS.items():
        write(tmp_path / "images" / name.replace("/", "_"), colour)
    write(tmp_path / "who.png", COLOUR)
    write(tmp_path / "other.png", COLOURS["far.png"])
    with opened(browser, server, ready="onnxruntime") as page:
        choose(page, tmp_path / "who.png")
        says(page, "#similar", "no index 'index': build it with `fovea index alike IMAGES`")
        code, _, err = fovea("index", "alike", "images", "--repository", repository)
        assert code == 0, err
        # Another image asks again.
        choose(page, tmp_path / "who.png")
        says(page, "#similar", "Most like it, of 3:")
        rows = page.locator("#similar li")
        names = rows.locator(".name").all_inner_texts()
        assert (names[0], set(names)) == ("near.png", {"near.png", "far.png", "<b>odd<_b>.png"})
        scores = [float(text) for text in rows.locator("b").all_inner_texts()]
        assert scores == sorted(scores, reverse=True)
        assert 0.99 < scores[0] <= 1
        assert rows.locator("img").count() == 0
        words = ("images", "--repository", repository, "--thumbnails")
        assert fovea("index", "alike", *words)[0] == 0
        choose(page, tmp_path / "other.png")
        first = page.locator("#similar li").filter(has_text="far.png").first
        decoded = "(each) => each.decode().then(() => each.naturalWidth)"
        assert first.locator("img").evaluate(decoded) == 20
        assert page.locator("#similar img").count() == 3
        page.locator("#clear").click()
        page.locator("#similar").wait_for(state="hidden")
