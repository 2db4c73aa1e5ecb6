"""Heads of what LibreYOLO exports, on its files.

Its own program gives a box every class over the threshold, clips boxes to the image, and suppresses
them then. A head gives a box its best class.
"""

import numpy as np
import pytest
from tests.engines import reference
from tests.engines.detect.heads.expected import NEAR, File

from fovea_engines.detect.heads.recognise import open_head
from fovea_engines.detect.options import PredictOptions

IOU = 0.45
PILLOW = {"resample": "antialias"}
FILES = {
    "libreyolo-yolo9t": ("libreyolo-yolo9", None, ("libreyolo-yolo9",)),
    "picodet": ("picodet", None, ("rtmdet", "picodet")),
    "ppyoloe": ("ppyoloe", None, ("yolo-nas", "ppyoloe")),
    "rtmdet": ("rtmdet", PILLOW, ("rtmdet", "picodet")),
    "yolonas": ("yolo-nas", PILLOW, ("yolo-nas",)),
}
"""Family, how LibreYOLO resizes otherwise, and what the numbers leave without the metadata."""


@pytest.fixture(scope="module", params=FILES)
def case(request, shared):
    return File(shared, request.param), *FILES[request.param]


def test_metadata_decides_and_numbers_may_leave_more(case):
    file, family, _, left = case
    assert file.recognise().family == family
    bare = file.recognise(metadata=False)
    assert set(left) <= {bare.family, *bare.open}


def test_boxes_have_the_best_of_their_stored_classes(case):
    file, family, trained, _ = case
    head, spec = open_head(file.recognise(), file.inputs), file.spec(family, trained)
    for pixels, rows in file.images.values():
        outputs, where = file.run(pixels, spec)
        found = head.decode(outputs, 0, PredictOptions(iou=IOU))
        boxes = where.boxes_to_source(found.boxes)
        rounded = where.scale_x != where.scale_y and spec.fit == "letterbox"
        seen = list(zip(boxes, found.scores, found.class_ids, strict=True))
        missed = [row for row in rows if not any(same(row, one, rounded) for one in seen)]
        for row in missed:
            better = [r for r in rows if np.allclose(r["box"], row["box"], atol=0.01)]
            assert max(r["score"] for r in better) > row["score"], f"{row} is not found"
        assert len(seen) > len(missed)
        for one in seen:
            if not any(same(row, one, rounded) for row in rows):
                assert outside(one[0]) or suppressed(one, rows), f"{one} is not stored"


def same(row, one, rounded):
    box, score, class_id = one
    least = 0.97 if rounded else 0.99
    return (
        class_id == row["class_id"]
        and abs(score - row["score"]) <= NEAR
        and reference.overlap(box, row["box"]) > least
    )


def outside(box):
    return box[0] == box[2] or box[1] == box[3]


def suppressed(one, rows):
    """Return True if a stored row suppresses this one, or is the same box in another class."""
    box, score, class_id = one
    return any(
        row["class_id"] == class_id
        and row["score"] > score
        and reference.overlap(box, row["box"]) > IOU
        for row in rows
    )
