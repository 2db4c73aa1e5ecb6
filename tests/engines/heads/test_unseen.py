"""Rows of zeros speak against no family: where numbers alone tell families apart, none is taken."""

import numpy as np
import pytest
from tests.engines.heads.by_hand import told

from fovea_engines.heads.recognise import recognise
from fovea_engines.session import TensorSpec

EMPTY = {"output0": np.zeros((1, 300, 6), np.float32)}
ROW = [0.25, 0.5, 0.2, 0.3, 0.9, 2]


def test_rows_of_zeros_decide_between_no_families():
    found = told(EMPTY)
    assert found.family is None
    assert found.unseen
    assert found.open[0] == "yolov10"
    assert "ultralytics-rtdetr" in found.open
    assert "show nothing that it finds" in found.reason


@pytest.mark.parametrize(
    ("row", "family"), [(ROW, "ultralytics-rtdetr"), ([40, 20, 90, 60, 0.9, 2], "yolov10")]
)
def test_one_row_decides(row, family):
    rows = EMPTY["output0"].copy()
    rows[0, 0] = row
    found = told({"output0": rows})
    assert (found.family, found.unseen) == (family, False)


def test_metadata_decides_without_a_row():
    found = told(EMPTY, {"head": "RTDETRDecoder", "names": "['a', 'b', 'c']"})
    assert (found.family, found.unseen) == ("ultralytics-rtdetr", True)
    assert "its numbers say nothing" in found.reason


def test_a_named_head_is_taken_without_a_row():
    assert told(EMPTY, family="yolov10").family == "yolov10"


def test_rows_of_padding_are_no_evidence():
    """MMDeploy fills up with class -1, others with boxes of score 0."""
    dets = np.full((1, 10, 5), 7, np.float32)
    dets[..., 4] = 0
    for labels in (np.full((1, 10), -1), np.zeros((1, 10))):
        found = told({"dets": dets, "labels": labels.astype(np.int64)})
        assert (found.family, found.unseen) == ("mmdeploy", True)


def not_run(*outputs, metadata=None, family=None):
    image = [TensorSpec("images", "float32", (-1, 3, 640, 640))]
    return recognise(image, outputs, metadata or {}, family, observe=lambda _: ())


@pytest.mark.parametrize(
    ("shape", "could_be"),
    [
        ((300, 6), {"yolov10", "ultralytics-rtdetr"}),
        ((84, 8400), {"yolov8", "libreyolo-yolo9", "yolov8-obb"}),
        ((8400, 85), {"yolox", "yolox-decoded", "yolov6"}),
    ],
)
def test_a_model_that_cannot_be_run_is_not_guessed_by_its_shape(shape, could_be):
    output = TensorSpec("output0", "float32", (-1, *shape))
    found = not_run(output)
    assert (found.family, found.unseen) == (None, True)
    assert set(found.open) >= could_be
    assert "the model could not be run" in found.reason
    assert not_run(output, family=found.open[0]).family == found.open[0]


def test_names_and_metadata_decide_for_a_model_that_cannot_be_run():
    dets = TensorSpec("dets", "float32", (-1, 100, 5)), TensorSpec("labels", "int64", (-1, 100))
    found = not_run(*dets)
    assert (found.family, found.unseen) == ("mmdeploy", True)
    assert "could not be run, so its numbers say nothing" in found.reason
    rows = TensorSpec("output0", "float32", (-1, 300, 6))
    named = {"head": "RTDETRDecoder", "names": "['a', 'b', 'c']"}
    assert not_run(rows, metadata=named).family == "ultralytics-rtdetr"


@pytest.mark.parametrize("rows", [(40, 97), (640, 640)])
def test_texts_and_maps_that_cannot_be_run_are_no_detectors(rows):
    found = not_run(TensorSpec("output0", "float32", (-1, *rows)))
    assert (found.family, found.open) == (None, ())
