"""Heads of what LibreYOLO exports, on its files."""

import pytest
from tests.engines.heads.expected import NEAR, File, unmatched_best

from fovea_engines.heads.recognise import open_head
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.letterbox import fit

pytestmark = pytest.mark.real

FILES = {
    "libreyolo-yolo9t": ("libreyolo-yolo9", ("libreyolo-yolo9",)),
    "picodet": ("picodet", ("rtmdet", "picodet")),
    "ppyoloe": ("ppyoloe", ("yolo-nas", "ppyoloe")),
    "rtmdet": ("rtmdet", ("rtmdet", "picodet")),
    "yolonas": ("yolo-nas", ("yolo-nas",)),
}
"""Family, and what the numbers leave without the metadata."""


@pytest.fixture(scope="module", params=FILES)
def case(request, shared):
    return File(shared, request.param), *FILES[request.param]


def test_metadata_decides_and_numbers_may_leave_more(case):
    file, family, left = case
    assert file.recognise().family == family
    bare = file.recognise(metadata=False)
    assert set(left) <= {bare.family, *bare.open}


def test_boxes_have_the_best_of_their_stored_classes(case):
    file, family, _ = case
    head, spec = open_head(file.recognise(), file.inputs), file.spec(family)
    for pixels, rows in file.images.values():
        outputs, where = file.run(pixels, spec)
        found = head.decode(outputs, 0, PredictOptions(conf=0.25 - NEAR, iou=0.45))
        found = found.to_source(where)
        left = unmatched_best((found.boxes, found.scores, found.class_ids), rows, pixels.shape)
        assert not [row for row in left if row[1] >= 0.25 + NEAR]


def test_the_metadata_says_where_an_image_lies(shared):
    file = File(shared, "libreyolo-yolo9t")
    assert file.spec("libreyolo-yolo9").anchor == "top-left"
    file.metadata["letterbox_pad"] = "center"
    spec = file.spec("libreyolo-yolo9")
    # LibreYOLO 1.6 cuts the fraction off there, too: 427 * .5 is 213.5.
    where = fit(spec, 640, 427)
    assert (where.scaled_width, where.scaled_height) == (320, 213)
    assert (where.offset_x, where.offset_y) == (0, 53)
