"""docs/how-to/recipes.md: each recipe is run as it is written, and its result checked."""

import re
import subprocess
from pathlib import Path

import cv2
import pytest
from tests.docs.pages import ROOT, blocks, run_blocks

pytestmark = [pytest.mark.real, pytest.mark.slow]

PAGE = (ROOT / "docs" / "how-to" / "recipes.md").read_text()
RECIPES = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
# What a recipe prints, as a pattern.
PRINTED = {
    "A classifier": r"police van|minibus",
    "Small objects on large images": r"person",
    "Masks as arrays": r"person +\(1080, 810\) \d{4,} pixels",
    "Compare a new version with the old one": (
        r"(?s)(?:mAP50-95.+){2}yolov8n version 1, .+images/s.+yolov8n version 2, .+images/s"
    ),
}
# Its command is in README, too, whose test runs it and checks what it prints.
IN_README = "INT8 with a gate"
# A file that a recipe writes.
WRITTEN = {
    "A folder of images into a COCO file": "found/predictions.json",
    "An annotated video": "drawn/annotated/street.mp4",
}


@pytest.fixture(scope="module")
def recipe_folder(workplace):
    """With two versions of yolov8n and a video, so that each recipe can run alone."""
    folder, _ = workplace
    for backend in ("openvino", "onnxruntime"):
        command = ["fovea", "build", "yolov8n.onnx", "--backend", backend]
        subprocess.run(command, check=True, capture_output=True)
    street = cv2.VideoWriter(
        str(folder / "street.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 5, (320, 240)
    )
    frame = cv2.resize(cv2.imread(str(folder / "bus.jpg")), (320, 240))
    for _ in range(3):
        street.write(frame)
    street.release()
    return workplace


def test_every_recipe_is_checked():
    assert list(RECIPES) == sorted([*PRINTED, *WRITTEN, IN_README], key=list(RECIPES).index)
    [(_, command)] = blocks(RECIPES[IN_README])
    assert command in (ROOT / "README.md").read_text()
    for text in RECIPES.values():
        lead = text.strip().split("\n\n")[0]
        assert lead.endswith("."), lead


@pytest.mark.timeout(900)
@pytest.mark.parametrize("title", [*PRINTED, *WRITTEN])
def test_a_recipe(recipe_folder, title):
    folder, ports = recipe_folder
    output = run_blocks(RECIPES[title], ports)
    if title in WRITTEN:
        assert Path(folder, WRITTEN[title]).stat().st_size > 1000
    else:
        assert re.search(PRINTED[title], output), output
