"""The colours of classes, the same in the server's pictures, in notebooks and on the page."""

from itertools import pairwise

import numpy as np
import pytest
from tools.colours import copies

from fovea_engines.results.colours import PALETTE, SHADES, colour, ink, shades

CLASSES = len(PALETTE) // 3
PERSON, BUS, BACKPACK, HANDBAG, TIE = 0, 5, 24, 26, 27


def linear(rgb):
    shares = np.array(rgb) / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def oklab(rgb):
    """Björn Ottosson's OKLab, in which distances are as people see them."""
    cones = linear(rgb) @ [
        [0.4122214708, 0.2119034982, 0.0883024619],
        [0.5363325363, 0.6806995451, 0.2817188376],
        [0.0514459929, 0.1073969566, 0.6299787005],
    ]
    return np.cbrt(cones) @ [
        [0.2104542553, 1.9779984951, 0.0259040371],
        [0.7936177850, -2.4285922050, 0.7827717662],
        [-0.0040720468, 0.4505937099, -0.8086757660],
    ]


def apart(one, other):
    return float(np.linalg.norm(oklab(one) - oklab(other)))


def test_no_colour_repeats_among_the_classes_of_coco_and_more():
    assert CLASSES >= 80
    for one in range(CLASSES):
        for other in range(one):
            assert apart(colour(one), colour(other)) > 0.05


def test_classes_that_are_seen_together_are_far_apart():
    for class_id in range(CLASSES):
        for near in range(class_id + 1, min(class_id + 6, CLASSES)):
            assert apart(colour(class_id), colour(near)) > 0.12
    for one, other in ((BUS, HANDBAG), (PERSON, BACKPACK), (PERSON, HANDBAG), (PERSON, TIE)):
        assert apart(colour(one), colour(other)) > 0.2


def test_letters_stand_out_from_every_colour_and_shade():
    for class_id in range(CLASSES):
        for shade in range(len(SHADES)):
            fill = colour(class_id, shade)
            dark, light = sorted(
                float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in (fill, ink(fill))
            )
            assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_shades_of_a_class_are_told_apart():
    for class_id in range(CLASSES):
        all_of_it = [colour(class_id, shade) for shade in range(len(SHADES))]
        assert min(apart(a, b) for i, a in enumerate(all_of_it) for b in all_of_it[:i]) > 0.08


def test_instances_that_touch_have_shades_of_their_own():
    row = [(10.0 * n, 0.0, 10.0 * n + 10, 20.0) for n in range(6)]
    chosen = shades([0] * 6, row)
    assert all(one != other for one, other in pairwise(chosen))
    # Alone, or beside another class, an instance has the colour of its class.
    assert shades([0, 0, 1], [row[0], row[3], row[1]]) == [0, 0, 0]
    # What is worse, and may be filtered out, changes nothing in what is better.
    assert shades([0] * 4, row[:4]) == chosen[:4]
    # In a crowd all shades are used before one is used again.
    assert sorted(shades([7] * 5, [row[0]] * 5)) == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("path", copies(), ids=lambda path: path.name)
def test_the_copies_are_those_of_the_engines(path):
    assert path.read_text() == copies()[path], "old: run `python -m tools.colours`"
