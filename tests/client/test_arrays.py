"""Answers as arrays, and in the forms of other tools."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from faster_coco_eval.core import mask as coco
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fovea_client import (
    Box,
    Corner,
    Detection,
    ImageResult,
    Keypoint,
    Outlines,
    Rotated,
    RunLengths,
    cvat,
)

pytestmark = pytest.mark.real

SUPERVISION = Path(sys.prefix) / "vision" / "site-packages"
PIXELS = np.zeros((8, 10), np.uint8)
PIXELS[2:5, 3:9] = 1


def run_lengths(pixels):
    written = coco.encode(np.asfortranarray(pixels))
    return RunLengths(tuple(written["size"]), written["counts"].decode())


def image(**parts):
    found = Detection(Box(3.0, 2.0, 9.0, 5.0), 0.75, 5, "bus", **parts)
    return ImageResult(10, 8, 1, (found, found))


@given(
    arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40)), elements=st.integers(0, 1))
)
def test_masks_decode_as_pycocotools_decodes_them(pixels):
    assert (run_lengths(pixels).pixels == pixels).all()


def test_arrays():
    result = image(mask=run_lengths(PIXELS), keypoints=(Keypoint("nose", 4.0, 3.0, 0.5),))
    assert result.boxes.tolist() == [[3, 2, 9, 5]] * 2
    assert result.scores.tolist() == [0.75, 0.75]
    assert result.class_ids.tolist() == [5, 5]
    assert (result.masks == PIXELS.astype(bool)).all()
    assert result.keypoints.tolist() == [[[4, 3, 0.5]]] * 2
    assert result.rotated is None
    turned = image(rotated=Rotated(5.0, 4.0, 4.0, 3.0, 0.5))
    assert turned.rotated.tolist() == [[5, 4, 4, 3, 0.5]] * 2
    nothing = ImageResult(10, 8, 1, ())
    assert nothing.boxes.shape == (0, 4)
    assert nothing.masks is nothing.keypoints is nothing.rotated is None


def test_coco_reads_the_results():
    result = image(mask=run_lengths(PIXELS), keypoints=(Keypoint("nose", 4.0, 3.0, 0.5),))
    [row, _] = result.to_coco(17)
    assert row["image_id"] == 17
    assert row["bbox"] == [3.0, 2.0, 6.0, 3.0]
    assert row["keypoints"] == [4.0, 3.0, 0.5]
    assert (coco.decode(row["segmentation"]) == PIXELS).all()
    outline = (3.0, 2.0, 9.0, 2.0, 9.0, 5.0)
    [row, _] = image(mask=Outlines(PIXELS.shape, (outline,))).to_coco(17)
    assert row["segmentation"] == [list(outline)]


def test_coco_has_the_decimals_of_the_server():
    """Differences and sums of such numbers have 17 digits in binary."""
    points = (Keypoint("nose", 0.1 + 0.2, 3.0, 0.1 + 0.2),)
    outlines = Outlines((8, 10), ((0.1 + 0.2, 1.0),))
    found = Detection(Box(0.1, 0.2, 0.3, 0.7), 0.1 + 0.2, 5, "bus", outlines, points)
    [row] = ImageResult(10, 8, 1, (found,)).to_coco(17)
    assert row["bbox"] == [0.1, 0.2, 0.2, 0.5]
    assert row["segmentation"] == [[0.3, 1.0]]
    assert (row["keypoints"], row["score"]) == ([0.3, 3.0, 0.3], 0.3)


def test_coco_has_the_categories_of_a_dataset():
    assert [row["category_id"] for row in image().to_coco(17)] == [5, 5]
    rows = image().to_coco(17, categories={"person": 1, "bus": 6})
    assert [row["category_id"] for row in rows] == [6, 6]
    with pytest.raises(ValueError, match="no category has the name bus: add"):
        image().to_coco(17, categories={"person": 1})
    assert ImageResult(10, 8, 1, ()).to_coco(17, categories={}) == []


@pytest.mark.parametrize("package", ["supervision", "fiftyone"])
def test_a_package_that_is_missing_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"{package} is not installed: pip install {package}"):
        getattr(image(), f"to_{package}")()


def test_cvat_names_its_package():
    """Its tests run in a process of their own: it is not installed here."""
    with pytest.raises(ImportError, match="pip install cvat-sdk"):
        cvat.create("http://127.0.0.1:9", "yolov8n")


def test_a_package_that_lacks_another_one_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "supervision.py").write_text("import whatever_it_needs")
    monkeypatch.delitem(sys.modules, "supervision", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match="'whatever_it_needs'"):
        image().to_supervision()


@pytest.fixture
def supervision(monkeypatch):
    if not SUPERVISION.exists():
        pytest.skip(f"{SUPERVISION} is absent: `make test-real` installs it")
    monkeypatch.syspath_prepend(str(SUPERVISION))
    return importlib.import_module("supervision")


def test_supervision_takes_the_results(supervision):
    found = image(mask=run_lengths(PIXELS)).to_supervision()
    assert isinstance(found, supervision.Detections)
    assert found.xyxy.tolist() == [[3, 2, 9, 5]] * 2
    assert found.data["class_name"].tolist() == ["bus", "bus"]
    assert found.area.tolist() == [18, 18]
    empty = ImageResult(10, 8, 1, ()).to_supervision()
    assert len(empty) == 0


def test_supervision_draws_the_results(supervision):
    """Its annotators are what a client without a server draws with."""
    blank = np.zeros((8, 10, 3), np.uint8)
    masked = image(mask=run_lengths(PIXELS)).to_supervision()
    drawn = supervision.MaskAnnotator(opacity=1).annotate(blank.copy(), masked)
    assert (drawn.any(axis=2) == PIXELS.astype(bool)).all()
    corners = tuple(Corner(x, y) for x, y in ((5.0, 1.0), (8.0, 4.0), (5.0, 7.0), (2.0, 4.0)))
    rotated = image(rotated=Rotated(5.0, 4.0, 4.2, 4.2, 0.79), corners=corners).to_supervision()
    drawn = supervision.OrientedBoxAnnotator(thickness=1).annotate(blank.copy(), rotated)
    assert all(drawn[int(p.y), int(p.x)].any() for p in corners)
    assert not drawn[1, 2].any()
    points = image(keypoints=(Keypoint("nose", 4.0, 3.0, 0.5),)).keypoints
    marks = supervision.KeyPoints(xy=points[..., :2], keypoint_confidence=points[..., 2])
    drawn = supervision.VertexAnnotator(radius=1).annotate(blank.copy(), marks)
    assert drawn[3, 4].any()
