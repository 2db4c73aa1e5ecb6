"""What an annotated image shows of boxes, rotated boxes, masks and maps."""

import math

import cv2
import numpy as np
import pytest

from fovea_engines.drawing.drawing import annotate, cut_out, draw, encode
from fovea_engines.results.colours import colour
from fovea_engines.results.detections import Detections
from fovea_engines.results.map_encoding import NOTHING
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.results.masks import Masks
from fovea_engines.results.rotated import bounds, corners, regular
from fovea_engines.results.skeleton import PERSON
from fovea_engines.results.vocabulary import NO_NAMES, Vocabulary

GREY = 90
TINY = [(1, 1), (2, 900), (20, 20)]


def image(height=400, width=600):
    return np.full((height, width, 3), GREY, np.uint8)


def one(box, class_id=3, score=0.5, **parts):
    boxes, scores = np.array([box], np.float32), np.array([score], np.float32)
    return Detections(boxes, scores, np.array([class_id], np.int32), **parts)


def turned(row):
    table = regular(np.array([row], np.float32))
    return one(bounds(table)[0], rotated=table)


def halves(left, right, size=(400, 600), dtype=np.float32):
    """A map of two values side by side."""
    values = np.full(size, left, dtype)
    values[:, size[1] // 2 :] = right
    return values


def changed(shown):
    return np.argwhere((shown != GREY).any(axis=2))


def at(shown, point):
    x, y = (round(float(number)) for number in point)
    return tuple(shown[y, x].tolist())


def test_the_box_has_its_class_colour_and_the_image_given_is_untouched():
    given = image()
    given.flags.writeable = False
    shown = draw(one((100, 150, 300, 350)), given, NO_NAMES)
    assert (given == GREY).all()
    assert at(shown, (100, 250)) == at(shown, (200, 350)) == colour(3)
    assert at(shown, (200, 250)) == (GREY,) * 3
    # An id beyond the labels is a number.
    beyond = draw(one((100, 150, 300, 350)), image(), Vocabulary(("a",)))
    assert (beyond == shown).all()


@pytest.mark.parametrize(
    "box",
    [(0, 0, 80, 60), (560, 0, 599, 399), (540, 380, 599, 399), (0, 380, 30, 399)],
    ids=["top left", "right edge", "bottom right", "bottom left"],
)
def test_the_label_stays_inside(box):
    # In the middle of the image nothing would be cut: as many pixels have to be painted here.
    label = Vocabulary(("", "", "", "a rather long name"))
    inside = len(changed(draw(one(box), image(), label)))
    assert inside > len(changed(draw(one(box), image(), NO_NAMES))) * 0.5
    assert inside >= len(changed(draw(one((300, 200, 301, 201)), image(), label))) * 0.95


@pytest.mark.parametrize("size", TINY)
@pytest.mark.parametrize(
    "found",
    [
        one((-1e5, -1e5, 1e5, 1e5)),
        one((0.2, 0.2, 0.4, 0.4)),
        turned((0, 0, 1e6, 9e5, 1)),
        turned((0.3, 0.3, 0.2, 0.1, 2)),
    ],
)
def test_tiny_images_and_far_boxes_are_survived(size, found):
    assert draw(found, image(*size), Vocabulary(("x",))).shape == (*size, 3)


@pytest.mark.parametrize("size", TINY)
def test_maps_of_tiny_images_are_survived(size):
    maps = ClassMap(halves(0, 3, size, np.uint16)), SoftMask(halves(0, 1, size))
    for found in (*maps, DepthMap(halves(0, 1, size)), DepthMap(halves(3, 3, size))):
        assert draw(found, image(*size), Vocabulary(("x",))).shape == (*size, 3)


def test_lines_grow_with_the_image():
    small = draw(one((50, 100, 250, 250)), image(300, 300), NO_NAMES)
    large = draw(one((500, 1000, 2500, 2500)), image(3000, 3000), NO_NAMES)
    thickness = [
        int((row != GREY).any(axis=1).sum()) for row in (small[200, 150:], large[2000, 1500:])
    ]
    assert thickness[1] >= 4 * thickness[0]


def test_a_rotated_box_has_its_sides_and_an_arrowhead_where_its_angle_points():
    cx, cy, width, _, angle = row = (300, 200, 200, 80, 0.5)
    shown = draw(turned(row), image(), NO_NAMES)
    outline = corners(np.array([row]))[0]
    for first, last in zip(outline, np.roll(outline, -1, axis=0), strict=True):
        assert at(shown, (first + last) / 2) == colour(3)
    x1, _, _, y2 = bounds(np.array([row]))[0]
    assert at(shown, (x1, y2)) == (GREY,) * 3
    towards = np.array([math.cos(angle), math.sin(angle)])
    assert at(shown, (cx, cy) + towards * (width / 2 - 8)) == colour(3)
    assert at(shown, (cx, cy) - towards * (width / 2 - 8)) == (GREY,) * 3


def test_sure_keypoints_and_their_bones_are_drawn():
    points = np.zeros((1, 17, 3), np.float32)
    points[0, 5], points[0, 6], points[0, 9] = (150, 200, 1), (250, 200, 1), (200, 300, 0.01)
    found = one((100, 150, 300, 350), keypoints=points)
    shown = draw(found, image(), Vocabulary(None, PERSON))
    bare = draw(one((100, 150, 300, 350)), image(), Vocabulary(None, PERSON))
    moved = np.argwhere((shown != bare).any(axis=2))
    # The shoulders and the line between them, and no wrist that is unsure.
    assert moved.min(axis=0) == pytest.approx([200, 150], abs=12)
    assert moved.max(axis=0) == pytest.approx([200, 250], abs=12)
    assert (shown[200, 200] != bare[200, 200]).any()


def test_a_tag_lies_on_its_box_with_the_name_and_the_number_of_its_track():
    box, vocabulary = (100, 150, 300, 350), Vocabulary(("", "", "", "bus"))
    rows, columns = changed(draw(one(box), image(), vocabulary)).T
    down = rows[(columns == 102) & (rows < 200)]
    assert down.tolist() == [*range(down[0], 200)]
    assert down[0] < 145
    tracked = [one(box, track_ids=np.array([track], np.int32)) for track in (0, 7)]
    plain, without, numbered = (
        len(changed(draw(found, image(), vocabulary))) for found in (one(box), *tracked)
    )
    assert plain == without < numbered


def test_persons_side_by_side_are_told_apart():
    """Two masks that meet at a column, of one class: in each picture there is an edge between."""
    boxes = np.array([(50, 50, 150, 150), (150, 50, 250, 150)], np.float32)
    full = np.ones((4, 4), np.float32)
    masks = Masks((full, full), boxes.astype(float), boxes.astype(float), (200, 300))
    scores, ids = np.array([0.9, 0.8], np.float32), np.zeros(2, np.int32)
    pair = Detections(boxes, scores, ids, masks=masks)
    shown = draw(pair, image(200, 300), Vocabulary(("person",))).astype(int)
    assert np.abs(shown[130, 100] - shown[130, 200]).max() > 30
    assert shown[140, 50] == pytest.approx(colour(0), abs=8)
    assert shown[140, 250] == pytest.approx(colour(0, 1), abs=8)


def test_encoding_keeps_the_channel_order():
    red = np.zeros((32, 32, 3), np.uint8)
    red[..., 0] = 200
    for kind, magic in (("image/png", b"\x89PNG"), ("image/jpeg", b"\xff\xd8\xff")):
        data = encode(red, kind)
        assert data.startswith(magic)
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert np.abs(bgr.astype(int) - [0, 0, 200]).max() <= 3


def test_classes_of_pixels_have_their_colours_and_a_legend():
    given = image()
    shown = draw(ClassMap(halves(4, 7, dtype=np.uint16)), given, NO_NAMES)
    assert (given == GREY).all()
    for column, class_id in ((150, 4), (450, 7)):
        off = np.subtract(shown[200, column], np.array(colour(class_id)) * 0.55 + GREY * 0.45)
        assert np.abs(off).max() <= 1
        # Its name is in the corner, in full colour.
        assert (shown[:40, :80] == colour(class_id)).all(axis=2).any()


@pytest.mark.parametrize(
    # Without names, the first class mostly is the background.
    ("left", "labels"),
    [(0, ("Background", "cat")), (NOTHING, None), (0, None)],
)
def test_background_and_what_is_left_out_stay_as_they_are(left, labels):
    shown = draw(ClassMap(halves(left, 1, dtype=np.uint16)), image(), Vocabulary(labels))
    assert (shown[200, :300] == GREY).all()
    assert (shown[200, 300:] != GREY).any(axis=1).all()


def test_what_stands_out_is_bright_and_the_rest_of_a_cut_out_is_transparent():
    found = SoftMask(halves(1, 0))
    shown = draw(found, image(), NO_NAMES)
    assert (shown[:, :300] == GREY).all()
    assert (shown[:, 300:] < GREY / 2).all()
    cut = cut_out(found, image())
    assert (cut[..., :3] == GREY).all()
    assert (cut[..., 3] == np.where(found.values == 1, 255, 0)).all()
    assert annotate(found, image(), NO_NAMES, "image/png") == encode(cut, "image/png")
    assert annotate(found, image(), NO_NAMES, "image/jpeg") == encode(shown, "image/jpeg")


@pytest.mark.parametrize("metres", [True, False])
def test_what_is_near_is_bright(metres):
    shown = draw(DepthMap(halves(1, 9), metres), image(), NO_NAMES)
    assert (shown[100, 50].sum() > shown[100, 550].sum()) == metres
