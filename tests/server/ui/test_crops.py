"""The page shows each object's crop beside what the stages of a pipeline found on it."""

import shutil

import numpy as np
import pytest
from tests.built import build
from tests.serving import start_server

from fovea_engines.build.plan import BuildPlan

from .conftest import DEMO, choose, opened

pytestmark = pytest.mark.browser

STAGES = """
[[stages]]
model = "digits"
[[stages]]
model = "classes"
"""
PIXELS = """
(canvas) => [canvas.width, canvas.height,
             ...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]
"""


@pytest.fixture(scope="module")
def server(demo_repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("crops")
    shutil.copytree(demo_repository, folder / "repository")
    build(BuildPlan(DEMO / "digits-classify.onnx", "classes", folder / "repository", "onnxruntime"))
    (folder / "repository" / "seen").mkdir()
    (folder / "repository" / "seen" / "pipeline.toml").write_text(STAGES)
    running = start_server(folder / "repository", folder)
    yield running
    assert running.stop() == 0


def test_each_object_has_its_crop(browser, server):
    with opened(browser, server, ready="FP32") as page:
        choose(page, DEMO / "scene-1.jpg")
        page.locator("select").first.select_option("seen")
        first = page.locator("#found .row").first
        first.locator("canvas.crop").wait_for()
        rows = page.locator("#found .row")
        assert rows.locator("canvas.crop").count() == rows.count() > 2
        width, height, *values = first.locator("canvas.crop").evaluate(PIXELS)
        assert (width > 20) & (height == 40)
        # A digit and its ground, not a plain area.
        assert np.array(values).reshape(height, width, 4)[..., :3].std() > 10
        assert page.locator(".legend .later").inner_text().startswith("classes")
        page.locator("select").first.select_option("digits")
        page.locator(".facts").filter(has_text="detect").wait_for()
        page.wait_for_function("!document.querySelector('#found canvas')")
