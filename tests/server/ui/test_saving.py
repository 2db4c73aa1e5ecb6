"""The page saves, and copies, what it shows."""

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from .conftest import DEMO, asked, choose, listed, says, slide, told

pytestmark = pytest.mark.browser

SCENES = [DEMO / "scene-1.jpg", DEMO / "scene-2.jpg"]


def saved(page, name: str, folder: Path) -> Path:
    with page.expect_download() as download:
        page.click(f"#saves button:has-text('{name}')")
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


def test_what_is_shown_is_copied_and_saved(drawn, page_server, tmp_path):
    drawn.context.grant_permissions(["clipboard-read", "clipboard-write"])
    drawn.locator(".chip").first.click()
    name = drawn.locator(".chip").first.inner_text().split()[0]
    slide(drawn, "conf", 0.5, let_go=True)
    found = asked(page_server, conf=0.5, classes=name)
    assert listed(drawn) == told(found)
    for language, words in (
        ("curl", f"predict?conf=0.5&classes={name}"),
        ("Python", f'conf=0.5, classes="{name}"'),
        ("JavaScript", f'conf: 0.5, classes: "{name}"'),
    ):
        drawn.get_by_label(language).check(force=True)
        drawn.click("#copy")
        says(drawn, "#copy", "^Copied$")
        copied = drawn.evaluate("navigator.clipboard.readText()")
        assert words in copied
        assert copied == drawn.inner_text("#code")
    drawn.get_by_label("Answer").check(force=True)
    assert json.loads(drawn.inner_text("#code"))["detections"] == found
    answer = json.loads(saved(drawn, "JSON", tmp_path).read_text())
    assert answer["detections"] == found
    assert "levels" not in answer


def test_tables_have_all_images_as_they_are_filtered(page, page_server, tmp_path):
    choose(page, *SCENES)
    # What was answered before the slider moved is asked again.
    slide(page, "conf", 0.01, let_go=True)
    wanted = [told(asked(page_server, scene, conf=0.01)) for scene in SCENES]
    rows = list(csv.DictReader(saved(page, "CSV of all 2", tmp_path).read_text().splitlines()))
    for scene, found in zip(SCENES, wanted, strict=True):
        own = [row for row in rows if row["file"] == scene.name]
        assert [(row["class_name"], f"{float(row['score']):.2f}") for row in own] == found
    coco = json.loads(saved(page, "COCO of all 2", tmp_path).read_text())
    assert len(coco["annotations"]) == len(rows)
    # An image without an answer is left out, and named.
    page.click("#clear")
    page.route("**/predict?*", lambda route: route.abort(), times=1)
    page.set_input_files("#files", SCENES[0])
    says(page, ".pane .problem", "does not respond")
    choose(page, SCENES[1])
    page.route("**/predict?*", lambda route: route.abort())
    saved(page, "CSV of all 2", tmp_path)
    says(page, "#alert", "^predictions.csv leaves out images without a result: scene-1.jpg")
    assert len(listed(page)) > 5


def test_the_picture_is_saved_as_it_is_shown(drawn, page_server, tmp_path):
    original = cv2.imread(str(DEMO / "scene-1.jpg")).astype(int)

    def drawn_over(name: str) -> np.ndarray:
        drawn.keyboard.press("0")
        shown = cv2.imread(str(saved(drawn, "Picture", tmp_path))).astype(int)
        assert shown.shape == original.shape
        return np.abs(shown - original).max(axis=2) > 60

    whole = drawn_over("all")
    box = asked(page_server)[0]["box"]
    lower = round(box["y2"])
    edge = whole[lower - 1 : lower + 2, round(box["x1"]) + 3 : round(box["x2"]) - 3]
    assert edge.any(axis=0).mean() > 0.8
    drawn.get_by_role("button", name="Boxes").click()
    assert drawn.locator(".outline").first.is_hidden()
    assert 0 < drawn_over("labels").sum() < whole.sum()
    drawn.get_by_role("button", name="Labels").click()
    assert drawn_over("nothing").sum() == 0
    # Side by side, as it is compared.
    drawn.click("#compare")
    says(drawn, "#summary", "Both")
    both = cv2.imread(str(saved(drawn, "Picture", tmp_path)))
    assert both.shape[0] == original.shape[0]
    assert both.shape[1] > 2 * original.shape[1]
