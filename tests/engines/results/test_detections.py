"""Boxes mapped back to the image: none lies in the padding alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fovea_engines.results.detections import Detections
from fovea_preprocess.letterbox import fit
from fovea_preprocess.spec import PreprocessSpec

SPECS = [
    PreprocessSpec(96, 96),
    PreprocessSpec(64, 96, anchor="top-left"),
    PreprocessSpec(96, 64, fit="stretch"),
    PreprocessSpec(64, 64, fit="center-crop", crop_ratio=1.25),
]
# Of an input of 96 pixels, with boxes that leave it.
SIDES = st.floats(-20, 120, width=32)
BOXES = st.lists(st.tuples(SIDES, SIDES, SIDES, SIDES), max_size=12)


def found(corners):
    table = np.array(corners, np.float32).reshape(-1, 2, 2)
    boxes = np.concatenate([table.min(axis=1), table.max(axis=1)], axis=1)
    scores = np.linspace(1, 0.5, len(boxes), dtype=np.float32)
    return Detections(boxes, scores, np.arange(len(boxes), dtype=np.int32))


@given(st.sampled_from(SPECS), st.integers(1, 300), st.integers(1, 300), BOXES)
def test_a_box_is_kept_exactly_if_some_of_the_image_is_in_it(spec, width, height, corners):
    place, before = fit(spec, width, height), found(corners)
    mapped, kept = place.boxes_to_source(before.boxes), before.to_source(place)
    assert (kept.boxes[:, 2:] > kept.boxes[:, :2]).all()
    # Scores and classes stay with their boxes, in their order.
    assert kept.boxes.tolist() == mapped[kept.class_ids].tolist()
    assert kept.scores.tolist() == before.scores[kept.class_ids].tolist()
    offset, size = (
        np.array(pair)
        for pair in ((place.offset_x, place.offset_y), (place.scaled_width, place.scaled_height))
    )
    low, high = before.boxes[:, :2], before.boxes[:, 2:]
    shared = np.minimum(high, offset + size) - np.maximum(low, offset)
    assert set(np.flatnonzero((shared > 1e-2).all(axis=1))) <= set(kept.class_ids)
    assert set(kept.class_ids) <= set(np.flatnonzero((shared > -1e-2).all(axis=1)))
