"""What an annotated image shows."""

import cv2
import numpy as np
import pytest

from fovea_engines.drawing.drawing import draw, encode
from fovea_engines.results.colours import colour
from fovea_engines.results.detections import Detections
from fovea_engines.results.masks import Masks
from fovea_engines.results.vocabulary import WORDLESS, Vocabulary

GREY = 90


def one(box, class_id=3, score=0.5):
    return Detections(
        np.array([box], np.float32), np.array([score], np.float32), np.array([class_id], np.int32)
    )


def changed(image):
    return np.argwhere((image != GREY).any(axis=2))


def image(height=400, width=600):
    return np.full((height, width, 3), GREY, np.uint8)


def test_the_box_has_its_class_colour_and_the_image_given_is_untouched():
    given = image()
    shown = draw(one((100, 150, 300, 350)), given, WORDLESS)
    assert (given == GREY).all()
    assert tuple(shown[250, 100]) == tuple(shown[350, 200]) == colour(3)
    assert tuple(shown[250, 200]) == (GREY,) * 3


def test_a_read_only_image_can_be_drawn_on():
    given = image()
    given.flags.writeable = False
    assert len(changed(draw(one((10, 50, 90, 90)), given, WORDLESS)))


@pytest.mark.parametrize(
    "box",
    [(0, 0, 80, 60), (560, 0, 599, 399), (540, 380, 599, 399), (0, 380, 30, 399)],
    ids=["top left", "right edge", "bottom right", "bottom left"],
)
def test_the_label_stays_inside(box):
    # On a wider image nothing would be cut: the same number of pixels has to be painted here.
    label = Vocabulary(("", "", "", "a rather long name"))
    bare = len(changed(draw(one(box), image(), WORDLESS)))
    inside = len(changed(draw(one(box), image(), label)))
    wide = np.full((400, 600, 3), GREY, np.uint8)
    middle = len(changed(draw(one((300, 200, 301, 201)), wide, label)))
    assert inside > bare * 0.5
    assert inside >= middle * 0.95


@pytest.mark.parametrize("size", [(1, 1), (2, 900), (20, 20)])
@pytest.mark.parametrize("box", [(-1e5, -1e5, 1e5, 1e5), (0.2, 0.2, 0.4, 0.4)])
def test_tiny_images_and_far_boxes_are_survived(size, box):
    shown = draw(one(box), np.zeros((*size, 3), np.uint8), Vocabulary(("x",)))
    assert shown.shape == (*size, 3)


def test_lines_grow_with_the_image():
    small = draw(one((50, 100, 250, 250)), image(300, 300), WORDLESS)
    large = draw(one((500, 1000, 2500, 2500)), image(3000, 3000), WORDLESS)
    thickness = [
        int((row != GREY).any(axis=1).sum()) for row in (small[200, 150:], large[2000, 1500:])
    ]
    assert thickness[1] >= 4 * thickness[0]


def test_ids_beyond_the_labels_are_numbers():
    box = (100, 150, 300, 350)
    by_number = draw(one(box, class_id=7), image(), Vocabulary(("a",)))
    assert (by_number == draw(one(box, class_id=7), image(), WORDLESS)).all()


def test_persons_side_by_side_are_told_apart():
    """Two masks that meet at a column, of one class: in each picture there is an edge between."""
    boxes = np.array([(50, 50, 150, 150), (150, 50, 250, 150)], np.float32)
    full = np.ones((4, 4), np.float32)
    masks = Masks((full, full), boxes.astype(float), boxes.astype(float), (200, 300))
    scores, ids = np.array([0.9, 0.8], np.float32), np.zeros(2, np.int32)
    pair = Detections(boxes, scores, ids, masks=masks)
    shown = draw(pair, image(200, 300), Vocabulary(("person",))).astype(int)
    left, right = shown[130, 100], shown[130, 200]
    assert np.abs(left - right).max() > 30
    assert shown[140, 50] == pytest.approx(colour(0), abs=8)
    assert shown[140, 250] == pytest.approx(colour(0, 1), abs=8)


def test_encoding_keeps_the_channel_order():
    red = np.zeros((32, 32, 3), np.uint8)
    red[..., 0] = 200
    png, jpeg = encode(red, "image/png"), encode(red, "image/jpeg")
    assert png.startswith(b"\x89PNG")
    assert jpeg.startswith(b"\xff\xd8\xff")
    for data in (png, jpeg):
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert np.abs(bgr.astype(int) - [0, 0, 200]).max() <= 3
