"""The scenes that the demo models are trained and measured on."""

import numpy as np
import pytest

pytest.importorskip("skimage", reason="scikit-image is only needed to train the demo models")
pytest.importorskip("sklearn", reason="scikit-learn is only needed to train the demo models")

from tools.demo_models.backdrops import PHOTOGRAPHS
from tools.demo_models.glyphs import VISIBLE, Glyph, draw, glyphs
from tools.demo_models.samples import DIGIT, SEEDS, sample
from tools.demo_models.scenes import Layout, compose

PLAIN = Layout(clutter=0, degrade=False, digits=(1, 1))


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_same_seed_same_scene(split):
    first, again = (compose(7, split, Layout()) for _ in range(2))
    assert np.array_equal(first.pixels, again.pixels)
    assert np.array_equal(first.boxes, again.boxes)
    assert np.array_equal(first.labels, again.labels)


def test_another_seed_or_split_is_another_scene():
    one = compose(7, "train", Layout()).pixels
    assert not np.array_equal(one, compose(8, "train", Layout()).pixels)
    assert not np.array_equal(one, compose(7, "heldout", Layout()).pixels)


def test_no_digit_is_in_both_splits():
    train, heldout = ({glyph.ink.tobytes() for glyph in glyphs(s)} for s in ("train", "heldout"))
    assert len(heldout) > 300
    assert len(train) > 1400
    assert not train & heldout


def test_every_class_is_in_both_splits():
    for split in ("train", "heldout"):
        assert {glyph.label for glyph in glyphs(split)} == set(range(10))


def test_no_photograph_is_in_both_splits():
    assert not set(PHOTOGRAPHS["train"]) & set(PHOTOGRAPHS["heldout"])
    assert all(path.is_file() for paths in PHOTOGRAPHS.values() for path in paths)


@pytest.mark.parametrize("height", [16.0, 60.0, 140.0])
def test_mask_is_cropped_to_visible_ink(height):
    rng = np.random.default_rng(3)
    for glyph in glyphs("heldout")[:20]:
        ink = draw(glyph, height, rng).opacity > VISIBLE
        assert ink[0].any()
        assert ink[-1].any()
        assert ink[:, 0].any()
        assert ink[:, -1].any()


def test_boxes_contain_the_pixels_pasted_and_no_more(monkeypatch):
    """Compose twice, once with ink that cannot be seen: what differs is the digit."""
    from tools.demo_models import scenes

    monkeypatch.setattr(scenes, "_stick_label", lambda *_: None)
    for seed in range(12):
        inked = compose(seed, "heldout", PLAIN)
        with monkeypatch.context() as patch:
            patch.setattr(scenes, "_ink_on", lambda ground, _: ground)
            bare = compose(seed, "heldout", PLAIN)
        changed = np.abs(inked.pixels.astype(int) - bare.pixels).max(axis=2)
        x1, y1, x2, y2 = inked.boxes[0].astype(int)
        inside = changed[y1:y2, x1:x2]
        assert changed.sum() == inside.sum()
        # Half-covered edge pixels on busy ground may change little: allow for one of them.
        rows, columns = np.flatnonzero(inside.max(1) > 8), np.flatnonzero(inside.max(0) > 8)
        assert rows[0] <= 1
        assert rows[-1] >= y2 - y1 - 2
        assert columns[0] <= 1
        assert columns[-1] >= x2 - x1 - 2


def test_ink_belongs_to_the_digit_in_whose_box_it_is():
    scene = compose(11, "heldout", Layout(digits=(6, 10)))
    assert sorted(np.unique(scene.owners)) == [*range(len(scene.labels) + 1)]
    for number, box in enumerate(scene.boxes.astype(int), start=1):
        x1, y1, x2, y2 = box
        own = scene.owners == number
        assert own[y1:y2, x1:x2].sum() == own.sum() > 0.1 * (x2 - x1) * (y2 - y1)


def test_a_rotated_rectangle_is_tight_around_the_ink_and_turned_as_it_is():
    """A bar that is drawn upright but for its turn shows the angle by its own long side."""
    bar = Glyph(1, np.zeros((8, 8), np.float32))
    bar.ink[1:7, 3:5] = 1
    for seed in range(8):
        drawing = draw(bar, 120.0, np.random.default_rng(seed))
        cx, cy, width, height, angle = drawing.rectangle()
        rows, columns = np.nonzero(drawing.opacity > 0.5)
        centred = np.stack((columns + 0.5 - cx, rows + 0.5 - cy))
        own = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) @ centred
        assert np.abs(own).max(axis=1) == pytest.approx((width / 2, height / 2), abs=3)
        leaning = np.polyfit(rows, columns, 1)[0]
        assert np.tan(angle) == pytest.approx(-leaning, abs=0.2)


def test_keypoints_are_the_centre_and_the_corners():
    scene = compose(11, "heldout", Layout(digits=(6, 10)))
    centre, corners = scene.keypoints()[:, 0], scene.keypoints()[:, 1:]
    assert corners.mean(axis=1) == pytest.approx(centre, abs=0.01)
    sides = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2)
    assert sides[:, [1, 2]] == pytest.approx(scene.rotated[:, [2, 3]], abs=0.01)
    # The ink's own box lies within that of the rectangle.
    assert (corners.min(axis=1) <= scene.boxes[:, :2] + 1).all()
    assert (corners.max(axis=1) >= scene.boxes[:, 2:] - 1).all()


def test_digits_do_not_touch():
    for seed in range(10):
        boxes = compose(seed, "train", Layout(digits=(6, 10))).boxes
        for index, one in enumerate(boxes):
            for other in boxes[index + 1 :]:
                low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
                assert (high - low).min() < 0


def test_a_glyph_is_scanned_ink():
    glyph = glyphs("train")[0]
    assert isinstance(glyph, Glyph)
    assert glyph.ink.shape == (8, 8)
    assert glyph.ink.min() >= 0
    assert glyph.ink.max() == 1


@pytest.mark.parametrize("name", SEEDS)
def test_sample_scenes_hold_digits(name):
    scene = sample(name)
    assert scene.pixels.shape == (480, 640, 3)
    assert 5 <= len(scene.labels) <= 9


def test_the_sample_for_the_classifier_is_one_large_digit():
    scene = sample(DIGIT)
    [(x1, y1, x2, y2)] = scene.boxes.tolist()
    assert max(x2 - x1, y2 - y1) > 0.6 * max(scene.pixels.shape)
