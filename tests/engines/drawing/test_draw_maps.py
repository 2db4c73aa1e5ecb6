"""Maps are drawn in the colours of their classes, with a legend."""

import numpy as np
import pytest

from fovea_engines.drawing.drawing import annotate, cut_out, draw, encode
from fovea_engines.results.colours import colour
from fovea_engines.results.map_encoding import NOTHING
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.results.vocabulary import WORDLESS, Vocabulary

GREY = 90
SIZE = 300, 400


def image(size=SIZE):
    return np.full((*size, 3), GREY, np.uint8)


def halves(left, right, size=SIZE, dtype=np.float32):
    """A map of two values side by side."""
    values = np.full(size, left, dtype)
    values[:, size[1] // 2 :] = right
    return values


def test_classes_have_their_colours_and_the_image_given_is_untouched():
    given = image()
    shown = draw(ClassMap(halves(4, 7, dtype=np.uint16)), given, WORDLESS)
    assert (given == GREY).all()
    for column, class_id in ((150, 4), (350, 7)):
        off = np.subtract(shown[200, column], np.array(colour(class_id)) * 0.55 + GREY * 0.45)
        assert np.abs(off).max() <= 1
    # Their names are in the corner, in full colour.
    assert (shown[:40, :80] == colour(4)).all(axis=2).any()
    assert (shown[:40, :80] == colour(7)).all(axis=2).any()


def test_background_and_what_is_left_out_stay_as_they_are():
    for found, labels in (
        (ClassMap(halves(0, 1, dtype=np.uint16)), ("Background", "cat")),
        (ClassMap(halves(NOTHING, 1, dtype=np.uint16)), None),
        # Without names, the first class mostly is the background.
        (ClassMap(halves(0, 1, dtype=np.uint16)), None),
    ):
        shown = draw(found, image(), Vocabulary(labels))
        assert (shown[200, :200] == GREY).all()
        assert (shown[200, 200:] != GREY).any(axis=1).all()


def test_only_what_stands_out_is_bright():
    shown = draw(SoftMask(halves(1, 0)), image(), WORDLESS)
    assert (shown[:, :200] == GREY).all()
    assert (shown[:, 200:] < GREY / 2).all()


def test_a_cut_out_is_transparent_where_nothing_stands_out():
    found = SoftMask(halves(1, 0))
    cut = cut_out(found, image())
    assert (cut[..., :3] == GREY).all()
    assert (cut[..., 3] == np.where(found.values == 1, 255, 0)).all()
    assert annotate(found, image(), WORDLESS, "image/png") == encode(cut, "image/png")
    flat = draw(found, image(), WORDLESS)
    assert annotate(found, image(), WORDLESS, "image/jpeg") == encode(flat, "image/jpeg")


@pytest.mark.parametrize("metres", [True, False])
def test_what_is_near_is_bright(metres):
    shown = draw(DepthMap(halves(1, 9), metres), image(), WORDLESS)
    near, far = shown[100, 50].sum(), shown[100, 350].sum()
    assert (near > far) == metres


def test_depths_that_are_all_the_same_are_drawn():
    assert draw(DepthMap(halves(3, 3)), image(), WORDLESS).shape == (*SIZE, 3)


@pytest.mark.parametrize("size", [(1, 1), (2, 900), (20, 20)])
def test_tiny_images_are_survived(size):
    for found in (
        ClassMap(halves(0, 3, size, np.uint16)),
        SoftMask(halves(0, 1, size)),
        DepthMap(halves(0, 1, size)),
    ):
        assert draw(found, image(size), Vocabulary(("x",))).shape == (*size, 3)
