"""Masks of detectors, by hand: of rows that are suppressed, and as sums of prototypes."""

import numpy as np
import pytest
from tests.engines.heads import exports as made
from tests.engines.heads.by_hand import BOXES, CLASSES, HEIGHT, SCORES, WIDTH, filled, told

from fovea_engines.heads.registry import FAMILIES as KNOWN
from fovea_engines.results.options import PredictOptions


def by_hand(side):
    """The left half of each of two masks, [2, *side]."""
    masks = np.zeros((2, *side), np.float32)
    masks[..., : side[1] // 2] = 0.9
    return masks


def torchvision():
    """Masks of the whole input, of which the second is only where its box is."""
    masks = np.zeros((2, 1, HEIGHT, WIDTH), np.float32)
    for mask, (x1, y1, x2, y2) in zip(masks[:, 0], BOXES, strict=True):
        mask[y1:y2, x1 : (x1 + x2) // 2] = 0.9
    return {
        "boxes": np.array(BOXES, np.float32),
        "labels": np.array(CLASSES),
        "scores": np.array(SCORES, np.float32),
        "masks": masks,
    }


def mmdeploy(masks):
    rows = [[*box, score] for box, score in zip(BOXES, SCORES, strict=True)]
    dets, labels = filled(rows, 4), filled(CLASSES, 4, np.int64)
    return {"dets": dets, "labels": labels, "masks": filled(masks, 4)}


@pytest.mark.parametrize(
    ("family", "outputs"),
    [
        ("torchvision-seg", torchvision()),
        ("mmdeploy-seg", mmdeploy(torchvision()["masks"][:, 0])),
        ("mmdeploy-seg", mmdeploy(by_hand((28, 28)))),
    ],
    ids=["torchvision", "mmdeploy, whole", "mmdeploy, in boxes"],
)
def test_masks_of_suppressed_rows(family, outputs):
    recognition = told(outputs)
    assert recognition.family == family
    assert recognition.task == "segment"
    head = KNOWN[family].open(recognition.outputs, (HEIGHT, WIDTH))
    found = head.decode(outputs, 0, PredictOptions())
    assert found.boxes.tolist() == BOXES
    for index, (x1, y1, x2, y2) in enumerate(BOXES):
        expected = np.zeros((HEIGHT, WIDTH), np.uint8)
        expected[y1:y2, x1 : (x1 + x2) // 2] = 1
        assert np.abs(found.masks.bitmap(index) - expected.astype(int)).sum() <= 3 * (y2 - y1)


def test_masks_that_are_no_probabilities_are_none():
    outputs = torchvision()
    outputs["masks"] *= 9
    assert told(outputs).family is None
    assert "masks is not a probability" in told(outputs).reason


def weighed(family):
    """The outputs of a segmenter whose object has weights of the first three prototypes."""
    weights = np.zeros(32, np.float32)
    weights[:3] = 1, 1, -1
    if family == "yolov5-seg":
        table = made.with_objectness(made.centred(per=3), made.objectness(3), per=3)
        rows = np.concatenate([table, np.tile(0 * weights, (1, table.shape[1], 1))], axis=2)
        rows[0, made.at(per=3), 85:] = weights
        outputs = made.one(made.by_anchor(rows))
    elif family == "yolov8-seg":
        outputs = {"output0": made.segmenter()["output0"]}
        outputs["output0"][0, 84:, made.at()] = weights
    else:
        outputs = {"output0": made.segmenter_rows()["output0"]}
        outputs["output0"][0, 0, 6:] = weights
    prototypes = np.full((1, 32, 160, 160), -1, np.float32)
    # The upper half of the input, the left 192 pixels, and all of it.
    prototypes[0, 0, :80], prototypes[0, 1, :, :48], prototypes[0, 2] = 1, 1, 1
    return outputs | {"output1": prototypes}


@pytest.mark.parametrize("family", ["yolov8-seg", "yolov5-seg", "yolov10-seg"])
def test_a_mask_is_a_sum_of_prototypes_in_its_box(family):
    outputs = weighed(family)
    head = KNOWN[family].open(tuple(outputs), (640, 640), 80)
    found = head.decode(outputs, 0, PredictOptions())
    assert found.boxes == pytest.approx(made.BOX[None], abs=0.01)
    x1, y1, _, _ = made.BOX.astype(int)
    want = np.zeros((640, 640), bool)
    want[y1:320, x1:192] = True
    # Pixels between two cells are interpolated.
    assert (found.masks.bitmap(0) != want).sum() < 4 * (320 - y1 + 192 - x1)
    without = head.decode(outputs, 0, PredictOptions(mask="none"))
    assert without.masks is None
    assert without.boxes.tolist() == found.boxes.tolist()
