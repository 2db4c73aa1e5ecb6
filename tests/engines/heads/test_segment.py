"""Segmenters on real files, and on masks written by hand."""

import numpy as np
import pytest
from tests.engines.heads.by_hand import BOXES, CLASSES, HEIGHT, SCORES, WIDTH, filled, told
from tests.engines.heads.expected import File

from fovea_engines.heads.recognise import open_head
from fovea_engines.heads.registry import FAMILIES as KNOWN
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_engines.results.options import PredictOptions

pytestmark = pytest.mark.real

FAMILIES = {
    "yolo11-seg": "yolov8-seg",
    "yolo11-seg-nometa": "yolov8-seg",
    "yolo26-seg": "yolov10-seg",
    "yolov8n-seg-320": "yolov8-seg",
    "rfdetr-seg": "rfdetr-seg",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_and_masks_are_the_stored_ones(shared, name):
    file = opened_file(shared, name)
    assert file.recognise().family == FAMILIES[name]
    assert file.recognise(metadata=False).family == FAMILIES[name]
    file.assert_expected()


@pytest.mark.parametrize("name", FAMILIES)
def test_no_masks_are_made_where_none_are_wanted(shared, name):
    file = opened_file(shared, name)
    recognition = file.recognise()
    head = open_head(recognition, file.inputs)
    pixels, rows = file.images["bus.jpg"]
    outputs, _ = file.run(pixels, file.spec(recognition.family))
    with_masks, without = (
        head.decode(outputs, 0, PredictOptions(mask=form)) for form in ("rle", "none")
    )
    assert without.masks is None
    assert len(with_masks.masks) == len(without) > 0
    assert without.boxes.tolist() == with_masks.boxes.tolist()
    assert len(rows) > 0


def opened_file(shared, name):
    file = File(shared, name)
    if file.inputs[0].shape[0] == -1:
        file.graph = normalise(file.graph, None, lambda note: None)
        file.inputs, file.outputs = graph_inputs(file.graph), graph_outputs(file.graph)
    return file


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
    assert "masks is no probability" in told(outputs).reason
