"""The page computes as the server does: colours, suppression, masks."""

import numpy as np
import pytest
from tests.run_lengths import decoded

from fovea_engines.results.colours import colour, ink, shades
from fovea_engines.results.mask_encoding import run_lengths
from fovea_engines.results.masks import Bitmap
from fovea_engines.results.nms import detections
from fovea_engines.results.options import PredictOptions

pytestmark = pytest.mark.browser

COLOURS = """
() => import('/page/colours.js').then(({ colour, ink }) =>
    [...Array(300).keys()].map((n) => [n >> 2, n % 4]).map(([id, shade]) =>
        [id, shade, colour(id, shade), ink(colour(id, shade))]))
"""
SHADED = """
(found) => import('/page/colours.js').then(({ shadeApart, colourOf }) => {
    shadeApart(found);
    return found.map(colourOf);
})
"""
FILTERED = """
([found, iou]) => import('/page/found.js').then(({ filtered }) =>
    filtered({ detections: found }, { conf: 0, iou: 1 }, { conf: 0.3, iou })
        .map((each) => each.score))
"""
NAMELESS = """
([answer, names]) => import('/page/found.js').then(({ itemsOf, labelNameless, labelOf }) => {
    labelNameless(answer, names);
    return itemsOf(answer).map(labelOf);
})
"""
PLACED = "(asked) => import('/page/labels.js').then(({ placeLabels }) => placeLabels(...asked))"
RUNS = "(counts) => import('/page/masks.js').then(({ runs }) => runs(counts))"


def test_classes_have_the_colours_that_the_server_draws_in(page):
    letters = {(0, 0, 0): "#000", (255, 255, 255): "#fff"}
    for class_id, shade, shown, letter in page.evaluate(COLOURS):
        assert tuple(shown) == colour(class_id, shade)
        assert letter == letters[ink(colour(class_id, shade))]


def test_instances_have_the_shades_that_the_server_draws_in(page):
    random = np.random.default_rng(4)
    corners = random.integers(0, 300, (60, 2))
    boxes = np.hstack([corners, corners + random.integers(9, 90, (60, 2))]).tolist()
    classes = random.integers(0, 3, 60).tolist()
    named = [dict(zip(("x1", "y1", "x2", "y2"), box, strict=True)) for box in boxes]
    found = [{"box": b, "class_id": c, "mask": {}} for b, c in zip(named, classes, strict=True)]
    chosen = shades(classes, boxes)
    assert set(chosen) == {0, 1, 2, 3}
    drawn = list(map(colour, classes, chosen))
    assert [tuple(each) for each in page.evaluate(SHADED, found)] == drawn
    without = page.evaluate(SHADED, [each | {"mask": None} for each in found])
    assert [tuple(each) for each in without] == list(map(colour, classes))


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("detections", ["cat", "class 1"]),
        ("classes", ["cat", "class 1"]),
        ("semantic", ["cat", "class 1"]),
        ("attributes", ["animal: cat", "animal: 1"]),
    ],
)
def test_classes_beyond_the_names_have_a_number(page, kind, labels):
    rows = [{"class_id": 0, "class_name": "cat", "score": 0.75, "share": 0.75},
            {"class_id": 1, "class_name": "1", "score": 0.25, "share": 0.25}]  # fmt: skip
    found = {
        "semantic": {"classes": rows},
        "attributes": [{"name": "animal", "exclusive": True, "classes": rows}],
    }
    assert page.evaluate(NAMELESS, [{kind: found.get(kind, rows)}, 1]) == labels


def test_overlaps_are_suppressed_as_the_server_does(page):
    random = np.random.default_rng(3)
    corners = random.uniform(0, 80, (200, 2))
    boxes = np.hstack([corners, corners + random.uniform(20, 60, (200, 2))]).astype(np.float32)
    scores = np.sort(random.uniform(0.1, 1, 200))[::-1].astype(np.float32)
    classes = random.integers(0, 3, 200)
    found = [
        {
            "box": dict(zip(("x1", "y1", "x2", "y2"), map(float, box), strict=True)),
            "score": float(score),
            "class_id": int(class_id),
        }
        for box, score, class_id in zip(boxes, scores, classes, strict=True)
    ]
    numbers = set()
    for iou in (0.2, 0.5, 0.8):
        kept = detections(boxes, scores, classes, PredictOptions(conf=0.3, iou=iou))
        assert page.evaluate(FILTERED, [found, iou]) == kept.scores.tolist()
        numbers.add(len(kept.scores))
    assert len(numbers) == 3


def test_run_lengths_are_read_as_coco_reads_them(page):
    for seed in range(5):
        random = np.random.default_rng(seed)
        blobs = (random.uniform(size=(60, 90)) < 0.5 - 0.1 * seed).astype(np.uint8)
        packed = run_lengths(Bitmap(7, 5, blobs), (80, 110))
        lengths = page.evaluate(RUNS, packed["counts"])
        values = np.arange(len(lengths)) % 2
        mask = np.repeat(values, lengths).reshape(110, 80).T
        assert (mask == decoded(packed)).all()
        assert mask.sum() == blobs.sum()


SAMPLED = """
(readings) => import('/page/live.js').then(({ added, figures }) =>
    figures(readings.reduce((samples, [at, count, answered]) => added(samples, { at, statistics: {
        durations: { '0.1': answered, '+Inf': answered },
        versions: [{ inference_count: count, pending: 0 }],
    } }), [])))
"""


def test_live_figures_begin_anew_where_counters_fall(page):
    assert page.evaluate(SAMPLED, [[0, 100, 100], [2000, 120, 120]])["rate"] == 10
    restarted = [[0, 100, 100], [2000, 120, 120], [4000, 5, 5], [6000, 11, 11]]
    assert page.evaluate(SAMPLED, restarted)["rate"] == 3


PAIRED = "(sides) => import('/page/found.js').then(({ paired }) => paired(...sides))"


def test_differences_between_two_models(page):
    def box(name, x, score=0.9):
        corners = {"x1": x, "y1": 0, "x2": x + 10, "y2": 10}
        return {"class_name": name, "class_id": 0, "score": score, "box": corners}

    left = [box("cat", 0), box("cat", 100), box("dog", 200)]
    right = [box("cat", 1), box("cat", 2, 0.5), box("cow", 200)]
    pairs = page.evaluate(PAIRED, [left, right])
    assert [(each["left"], each["right"]) for each in pairs] == [
        (left[1], None),
        (left[2], None),
        (None, right[1]),
        (None, right[2]),
        (left[0], right[0]),
    ]
    assert pairs[-1]["overlap"] == pytest.approx(90 / 110)


def test_labels_do_not_cover_each_other(page):
    random = np.random.default_rng(5)
    corners = random.uniform(-20, 380, (80, 2))
    boxes = np.hstack([corners, corners + random.uniform(5, 90, (80, 2))])
    sizes = [{"width": width, "height": 20} for width in random.integers(30, 90, 80).tolist()]
    named = [dict(zip(("x1", "y1", "x2", "y2"), box, strict=True)) for box in boxes.tolist()]
    area = {"width": 400, "height": 400}
    places = page.evaluate(PLACED, [named, sizes, area])
    taken = np.zeros((400, 400), int)
    for place, size in zip(places, sizes, strict=True):
        if place is not None:
            x, y = place["x"], place["y"]
            assert 0 <= x <= 400 - size["width"]
            assert 0 <= y <= 380
            # The pixels that are whole within it.
            taken[int(np.ceil(y)) : int(y + 20), int(np.ceil(x)) : int(x + size["width"])] += 1
    assert taken.max() == 1
    assert 40 < sum(place is not None for place in places) < 80
    # A lone label stands on its box.
    alone = page.evaluate(PLACED, [[{"x1": 50, "y1": 60, "x2": 90, "y2": 99}], sizes[:1], area])
    assert alone == [{"x": 50, "y": 40}]
