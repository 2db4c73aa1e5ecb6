"""Where the tags of boxes go."""

import json
from collections import defaultdict

import numpy as np
import pytest

from fovea_engines.drawing.drawing import draw
from fovea_engines.drawing.tags import letter, place
from fovea_engines.results.colours import colour
from fovea_engines.results.detections import Detections
from fovea_engines.results.vocabulary import Vocabulary


def rectangle(tag):
    return (tag.left, tag.top, tag.left + tag.lettering.width, tag.top + tag.lettering.height)


def overlap(one, other):
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0) * max(high, 0)


def upper_third(box):
    x1, y1, x2, y2 = box
    return (x1, y1, x2, y1 + -(-(y2 - y1) // 3))


def area(box):
    return (box[2] - box[0]) * (box[3] - box[1])


def crowd(seed):
    """An image size, and boxes, names and scores in it; small, mixed and large boxes in turn."""
    random = np.random.default_rng(seed)
    size = tuple(random.integers(1, 900, 2).tolist())
    count, side = int(random.integers(1, 60)), (6, 60, 900)[seed % 3]
    starts = (random.random((count, 2)) * size).astype(int)
    ends = np.minimum(starts + random.integers(1, side + 1, (count, 2)), size)
    boxes = [tuple(box) for box in np.hstack([starts, ends]).tolist()]
    names = random.choice(["", "tie", "person", "a rather long name"], count).tolist()
    return size, boxes, names, np.sort(random.random(count))[::-1].tolist()


@pytest.mark.parametrize("first", range(3))
def test_tags_are_inside_and_cover_no_other_tag_and_no_head(first):
    for seed in range(first, 120, 3):
        size, boxes, names, scores = crowd(seed)
        tags = place(boxes, names, scores, size)
        assert tags == place(boxes, names, scores, size)
        placed = [rectangle(tag) for tag in tags if tag is not None]
        largest = max((area(tag) for tag in placed), default=0)
        heads = [upper_third(box) for box in boxes]
        small_heads = [head for head in heads if area(head) < 32 * largest]
        for i, tag in enumerate(placed):
            assert min(tag[:2]) >= 0
            assert (np.array(tag[2:]) <= size).all()
            assert not any(overlap(tag, other) for other in (*placed[:i], *small_heads))


@pytest.mark.real
def test_real_crowds_keep_their_heads_and_most_of_their_tags(shared_crowds):
    count = tagged = 0
    for size, boxes in shared_crowds:
        tags = place(boxes, ["person"] * len(boxes), np.linspace(1, 0.3, len(boxes)), size)
        placed = [rectangle(tag) for tag in tags if tag is not None]
        for box in boxes:
            head = upper_third(box)
            if area(head) < 0.05 * size[0] * size[1]:
                assert not any(overlap(tag, head) for tag in placed)
        count += len(boxes)
        tagged += len(placed)
    assert count > 150
    assert tagged > 0.8 * count


@pytest.fixture
def shared_crowds(shared):
    """Size and labelled boxes of the images with most objects; one is a class photograph."""
    document = json.loads((shared / "data/coco64/val.json").read_text())
    boxes = defaultdict(list)
    for label in document["annotations"]:
        x, y, width, height = label["bbox"]
        boxes[label["image_id"]].append((int(x), int(y), int(x + width) + 1, int(y + height) + 1))
    sizes = {image["id"]: (image["width"], image["height"]) for image in document["images"]}
    most = sorted(boxes, key=lambda image: -len(boxes[image]))[:10]
    return [
        (sizes[i], [(x1, y1, min(x2, sizes[i][0]), min(y2, sizes[i][1])) for x1, y1, x2, y2 in b])
        for i, b in ((i, boxes[i]) for i in most)
    ]


def test_a_lone_tag_is_large_and_stands_on_its_box():
    [tag] = place([(100, 150, 300, 350)], ["person"], [0.87], (640, 480))
    assert tag.lettering.text == "person 0.87"
    assert (tag.left, tag.top + tag.lettering.height) == (100, 150)


LARGE, SMALL, NAME = letter("tie 0.50", 0.4), letter("tie 0.50", 0.3), letter("tie", 0.3)


@pytest.mark.parametrize(
    ("width", "expected"),
    [(LARGE.width, LARGE), (SMALL.width, SMALL), (NAME.width, NAME), (NAME.width - 1, None)],
)
def test_a_tag_shrinks_then_drops_its_score_then_goes(width, expected):
    [tag] = place([(0, 40, 10, 80)], ["tie"], [0.5], (width, 100))
    if expected is None:
        assert tag is None
    else:
        assert tag.lettering == expected._replace(scale=tag.lettering.scale)


def test_the_better_box_keeps_its_tag_and_the_other_moves_to_the_bottom():
    box = (100, 100, 160, 260)
    best, other = place([box, box], ["tie", "tie"], [0.9, 0.5], (640, 480))
    assert best.top + best.lettering.height == 100
    assert other.lettering == best.lettering._replace(text="tie 0.50")
    assert other.top == 260


def test_a_head_too_large_to_hide_may_carry_a_tag():
    bus, person = (10, 100, 630, 460), (200, 150, 260, 400)
    _, tag = place([bus, person], ["bus", "person"], [0.9, 0.8], (640, 480))
    assert tag.top + tag.lettering.height == 150


def test_a_box_without_a_tag_keeps_its_colour():
    pixels = np.full((40, 12, 3), 90, np.uint8)
    found = Detections(
        np.array([[2, 5, 9, 30]], np.float32), np.array([0.5], np.float32), np.array([3], np.int32)
    )
    shown = draw(found, pixels, Vocabulary(("", "", "", "a rather long name")))
    assert np.abs(shown[20, 2].astype(int) - colour(3)).max() < 30
    assert (shown[7:28, 4:8] == 90).all()


@pytest.mark.parametrize("side", [64, 6000])
def test_letters_suit_small_and_large_images(side):
    box = (side // 4, side // 3, side // 2, side // 2)
    [tag] = place([box], ["bus"], [0.5], (side, side))
    assert 0.01 * side < tag.lettering.height < 0.25 * side
