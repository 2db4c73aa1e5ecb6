"""Heads that decode maps, computed by hand: CenterNet and FastestDet."""

import numpy as np
import pytest

from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

HEIGHT, WIDTH = 64, 96
IMAGE = [TensorSpec("input", "float32", (1, 3, HEIGHT, WIDTH))]


def opened(outputs, family):
    specs = [TensorSpec(name, "float32", array.shape) for name, array in outputs.items()]
    told = recognise(IMAGE, specs, {}, family)
    return told, open_head(told, IMAGE)


@pytest.fixture
def centres():
    """Two classes: a peak in a corner, one beside it, and one that is worse than its neighbour."""
    heat = np.full((1, 2, 16, 24), 0.01, np.float32)
    heat[0, 0, 0, 0], heat[0, 1, 0, 1] = 0.9, 0.8
    heat[0, 1, 10, 20], heat[0, 1, 11, 21] = 0.7, 0.6
    sizes, offsets = np.zeros((1, 2, 16, 24), np.float32), np.full((1, 2, 16, 24), 0.5, np.float32)
    sizes[0, :, 0, 0], sizes[0, :, 0, 1], sizes[0, :, 10, 20] = (1, 2), (3, 1), (4, 6)
    offsets[0, :, 10, 20] = 0.25, 0.75
    return {"hm": heat, "wh": sizes, "reg": offsets}


EXPECTED = [[0, -2, 4, 6], [0, 0, 12, 4], [73, 31, 89, 55]]


def test_centernet_finds_peaks(centres):
    told, head = opened(centres, "centernet")
    assert (told.num_classes, told.outputs) == (2, ("hm", "wh", "reg"))
    found = head.decode(centres, 0, PredictOptions(iou=0))
    assert found.boxes.tolist() == EXPECTED
    assert found.class_ids.tolist() == [0, 1, 1]
    assert found.scores == pytest.approx([0.9, 0.8, 0.7])
    assert head.contradiction(centres) is None


def test_centernet_before_its_sigmoid(centres):
    logits = centres | {"hm": np.log(centres["hm"] / (1 - centres["hm"]))}
    assert "no probability" in opened(logits, "centernet")[1].contradiction(logits)
    _, head = opened(logits, "centernet-logits")
    found = head.decode(logits, 0, PredictOptions())
    assert found.boxes.tolist() == EXPECTED
    assert found.scores == pytest.approx([0.9, 0.8, 0.7], abs=1e-6)
    assert head.contradiction(logits) is None
    assert "no logits" in head.contradiction(centres)
    # Boxes of no size are none.
    assert len(head.decode(logits, 0, PredictOptions(conf=0))) == 3


def test_centernet_goes_by_names(centres):
    swapped = {"hm": centres["hm"], "reg": centres["reg"], "wh": centres["wh"]}
    told, head = opened(swapped, "centernet")
    assert told.outputs == ("hm", "wh", "reg")
    assert head.decode(swapped, 0, PredictOptions()).boxes.tolist() == EXPECTED
    unnamed = dict(zip("abc", (centres["hm"], centres["reg"], centres["wh"] + 9), strict=True))
    assert "no places in cells" in opened(unnamed, "centernet")[1].contradiction(unnamed)


@pytest.fixture
def one_map():
    """Objectness, x y w h and three classes at stride 16; an object in the last cell."""
    table = np.zeros((1, 8, 4, 6), np.float32)
    table[0, 5:] = 1 / 3
    x, y = np.arctanh([0.5, -0.25])
    w, h = np.log(1 / 3), 0.0  # sigmoids are 1/4 and 1/2
    table[0, :, 3, 5] = [0.81, x, y, w, h, 0.0, 0.36, 0.64]
    return {"758": table}


def test_fastestdet(one_map):
    told, head = opened(one_map, "fastestdet")
    assert told.num_classes == 3
    found = head.decode(one_map, 0, PredictOptions())
    # The centre is cell (5.5, 2.75) of 16 pixels, and the size a fourth of 96 and half of 64.
    assert found.boxes == pytest.approx(np.array([[76, 28, 100, 60]]), abs=1e-4)
    assert found.class_ids.tolist() == [2]
    assert found.scores == pytest.approx([0.81**0.6 * 0.64**0.4])
    assert head.contradiction(one_map) is None
    assert head.columns(one_map).shape == (8, 24)


def test_features_and_masks_are_no_fastestdet(one_map):
    random = np.random.default_rng(0)
    _, head = opened(one_map, "fastestdet")
    logits = {"758": random.normal(size=(1, 8, 4, 6)).astype(np.float32)}
    assert "no probability" in head.contradiction(logits)
    sigmoids = {"758": 1 / (1 + np.exp(-logits["758"]))}
    assert "do not add up to 1" in head.contradiction(sigmoids)
