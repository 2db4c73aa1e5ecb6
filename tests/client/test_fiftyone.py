"""Results as labels of FiftyOne, which checks them; its samples need no database."""

import importlib
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.client.test_arrays import PIXELS, image, run_lengths

from fovea_client import (
    ClassArea,
    Corner,
    Depth,
    ImageResult,
    Keypoint,
    MaskFile,
    Rotated,
    Saliency,
    ScoredClass,
    Semantic,
)
from fovea_engines.results.map_encoding import class_png, depth_png, mask_png

pytestmark = pytest.mark.real

FIFTYONE = Path(sys.prefix) / "fiftyone" / "site-packages"


@pytest.fixture(scope="module")
def fiftyone(tmp_path_factory):
    if not FIFTYONE.exists():
        pytest.skip(f"{FIFTYONE} is absent: `make test-fiftyone` installs it")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("FIFTYONE_DO_NOT_TRACK", "1")
        patch.syspath_prepend(str(FIFTYONE))
        yield importlib.import_module("fiftyone")


def kept(fiftyone, label):
    """The label as a sample has it."""
    sample = fiftyone.Sample(filepath="bus.jpg")
    sample["found"] = label
    return fiftyone.Sample.from_dict(sample.to_dict())["found"]


def test_boxes(fiftyone):
    got = kept(fiftyone, image().to_fiftyone())
    assert isinstance(got, fiftyone.Detections)
    [first, _] = got.detections
    assert (first.label, first.confidence, first.mask) == ("bus", 0.75, None)
    assert first.bounding_box == [0.3, 0.25, 0.6, 0.375]
    nothing = ImageResult(10, 8, 1, ())
    assert isinstance(nothing.to_fiftyone(), fiftyone.Detections)
    assert isinstance(nothing.to_fiftyone("keypoints"), fiftyone.Keypoints)
    assert isinstance(nothing.to_fiftyone("rotated"), fiftyone.Polylines)
    with pytest.raises(ValueError, match="'masks'"):
        nothing.to_fiftyone("masks")


@pytest.mark.parametrize("form", ["runs", "file"])
def test_masks_lie_where_they_lay(fiftyone, form):
    mask = run_lengths(PIXELS)
    if form == "file":
        mask = MaskFile((8, 10), left=2, top=1, png=mask_png(PIXELS[1:6, 2:9]))
    [first, _] = kept(fiftyone, image(mask=mask).to_fiftyone()).detections
    assert first.mask.shape == (3, 6)
    drawn = first.to_segmentation(frame_size=(10, 8), target=1).mask
    assert (drawn == PIXELS).all()


def test_keypoints_and_rotated_boxes(fiftyone):
    points = (Keypoint("nose", 4.0, 2.0, 0.5), Keypoint("tail", 5.0, 6.0, 0.25))
    [first, _] = kept(fiftyone, image(keypoints=points).to_fiftyone("keypoints")).keypoints
    assert first.label == "bus"
    assert first.points == [[0.4, 0.25], [0.5, 0.75]]
    assert first.confidence == [0.5, 0.25]
    corners = tuple(Corner(x, y) for x, y in ((5.0, 1.0), (8.0, 4.0), (5.0, 7.0), (2.0, 4.0)))
    turned = image(rotated=Rotated(5.0, 4.0, 4.24, 4.24, 0.79), corners=corners)
    [first, _] = kept(fiftyone, turned.to_fiftyone("rotated")).polylines
    assert (first.closed, first.filled, first.confidence) == (True, False, 0.75)
    assert first.points == [[[0.5, 0.125], [0.8, 0.5], [0.5, 0.875], [0.2, 0.5]]]


def test_classes_and_maps(fiftyone):
    classes = (ScoredClass(3, "cat", 0.75), ScoredClass(4, "dog", 0.25))
    got = kept(fiftyone, ImageResult(10, 8, 1, (), classes=classes).to_fiftyone())
    assert isinstance(got, fiftyone.Classifications)
    assert [(c.label, c.confidence) for c in got.classifications] == [("cat", 0.75), ("dog", 0.25)]
    semantic = Semantic((ClassArea(1, "sky", 18, 0.2),), class_png(PIXELS))
    got = kept(fiftyone, ImageResult(10, 8, 1, (), semantic=semantic).to_fiftyone())
    assert isinstance(got, fiftyone.Segmentation)
    assert (got.mask == PIXELS).all()
    saliency = Saliency(0.2, mask_png(PIXELS))
    got = kept(fiftyone, ImageResult(10, 8, 1, (), saliency=saliency).to_fiftyone())
    assert isinstance(got, fiftyone.Heatmap)
    assert (got.map == PIXELS * 255).all()
    file = depth_png(PIXELS + np.float32(1))
    depth = Depth(1.0, 2.0, "m", file.png, file.scale, file.offset)
    got = kept(fiftyone, ImageResult(10, 8, 1, (), depth=depth).to_fiftyone())
    assert (got.map == PIXELS + 1).all()
    assert got.range == [1.0, 2.0]
    with pytest.raises(ValueError, match='mask="png"'):
        ImageResult(10, 8, 1, (), semantic=Semantic(())).to_fiftyone()
