"""The page saves the same files as `fovea predict`, and the picture as it is shown."""

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from .conftest import DEMO, choose, listed, says
from .test_page import asked, slide

pytestmark = pytest.mark.browser

SCENES = [DEMO / "scene-1.jpg", DEMO / "scene-2.jpg"]


def saved(page, name: str, folder: Path) -> Path:
    with page.expect_download() as download:
        page.click(f"#saves button:has-text('{name}')")
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


@pytest.fixture
def written(fovea, page_server, tmp_path):
    """The forms of `fovea predict`, of both scenes."""
    out = tmp_path / "found"
    sources = [str(each) for each in SCENES]
    fovea(
        "predict", "digits", *sources, "--url", page_server.url, "--format=coco,csv", f"--out={out}"
    )
    return out


def test_all_images_are_saved_in_the_forms_of_predict(page, written, tmp_path):
    choose(page, *SCENES)
    # What was answered before the slider moved is asked again.
    slide(page, "conf", 0.01, let_go=True)
    slide(page, "conf", 0.25, let_go=True)
    mine, other = saved(page, "COCO of all 2", tmp_path), written / "predictions.json"
    assert mine.name == other.name
    assert by_id(json.loads(mine.read_text())) == by_id(json.loads(other.read_text()))
    mine, other = saved(page, "CSV of all 2", tmp_path), written / "predictions.csv"
    assert mine.name == other.name
    rows = [list(csv.DictReader(each.read_text().splitlines())) for each in (mine, other)]
    for row in rows[1]:
        row["file"] = Path(row["file"]).name
    assert sorted(map(numbers, rows[0])) == sorted(map(numbers, rows[1]))
    assert len(rows[0]) > 10


def test_bad_files_keep_a_message_each_and_are_not_counted(page, tmp_path):
    half = tmp_path / "half.jpg"
    # Browsers show what there is of it, and the server refuses it.
    half.write_bytes(SCENES[0].read_bytes()[:9000])
    texts = [tmp_path / "one.tiff", tmp_path / "two.tiff"]
    for text in texts:
        text.write_text("no image")
    page.set_input_files("#files", [SCENES[0], texts[0], half, texts[1], SCENES[1]])
    says(page, "#alert", r"one\.tiff: .+\ntwo\.tiff: ")
    failed = page.locator("#strip .failed")
    failed.wait_for()
    assert failed.get_attribute("title").startswith("half.jpg: the image is damaged")
    page.locator("#saves button", has_text="CSV of all 2").wait_for()
    failed.click()
    says(page, ".pane .problem", "the image is damaged")
    says(page, "#alert", r"one\.tiff")


def numbers(row):
    return [(name, float(text) if name[0] in "sxy" else text) for name, text in row.items()]


def by_id(dataset):
    """A dataset with its annotations in an order of their own: equal scores have none."""
    rows = sorted(({**each, "id": 0} for each in dataset["annotations"]), key=json.dumps)
    return {
        **dataset,
        "annotations": [json.loads(json.dumps(each, sort_keys=True)) for each in rows],
    }


def test_the_answer_is_read_copied_and_saved(drawn, page_server, tmp_path):
    slide(drawn, "conf", 0.5)
    found = asked(page_server, conf=0.5)
    drawn.get_by_label("Answer").check(force=True)
    assert json.loads(drawn.inner_text("#code"))["detections"] == found
    answer = json.loads(saved(drawn, "JSON", tmp_path).read_text())
    assert answer["detections"] == found
    assert "levels" not in answer


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


def test_an_image_without_an_answer_is_named(page, tmp_path):
    page.route("**/predict?*", lambda route: route.abort(), times=1)
    page.set_input_files("#files", SCENES[0])
    says(page, ".pane .problem", "does not answer")
    choose(page, SCENES[1])
    page.route("**/predict?*", lambda route: route.abort())
    saved(page, "CSV of all 2", tmp_path)
    says(page, "#alert", "^predictions.csv is without scene-1.jpg")
    assert len(listed(page)) > 5
