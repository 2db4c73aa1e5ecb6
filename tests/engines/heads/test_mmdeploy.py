"""MMDeploy's dets and labels."""

import numpy as np
import pytest
from tests.engines.heads.by_hand import (
    BOXES,
    CLASSES,
    SCORES,
    assert_found,
    filled,
    opened,
    told,
)
from tests.engines.heads.expected import File

from fovea_engines.results.options import PredictOptions

pytestmark = pytest.mark.real


def test_file(shared):
    file = File(shared, "mmdeploy")
    assert file.recognise().family == "mmdeploy"
    # The file was made for centred images; MMDetection pads at the right and bottom.
    file.assert_expected("mmdeploy", trained={"anchor": "center", "unscale": "ratio"})


def outputs():
    rows = [[*box, score] for box, score in zip(BOXES, SCORES, strict=True)]
    return {"dets": filled(rows, 4), "labels": filled(CLASSES, 4, np.int64)}


@pytest.mark.parametrize("padding", [0, -1])
def test_padding_is_nothing(padding):
    rows = outputs()
    rows["labels"][0, 2:] = padding
    recognition = told(rows)
    assert recognition.family == "mmdeploy"
    assert_found(opened(recognition).decode(rows, 0, PredictOptions()))
    everything = opened(recognition).decode(rows, 0, PredictOptions(conf=0))
    assert len(everything) == 2


def test_names_do_not_matter_where_the_shapes_say_it():
    assert told(dict(zip("ab", outputs().values(), strict=True))).family == "mmdeploy"


@pytest.mark.parametrize(
    ("columns", "scale", "because"),
    [
        ([4, 0, 1, 2, 3], 1, "column 4 of dets is no probability"),
        ([0, 1, 2, 3, 4], [1 / 640, 1 / 320] * 2 + [1], "boxes are no pixels"),
        ([2, 3, 0, 1, 4], 1, "boxes are no corners"),
        ([1, 0, 3, 2, 4], 1, "with x and y swapped none is"),
    ],
)
def test_contradictions(columns, scale, because):
    rows = outputs()
    rows["dets"] = rows["dets"][..., columns] * np.float32(scale)
    assert because in told(rows).reason


def test_no_rows_are_no_contradiction():
    head = opened(told(outputs()))
    nothing = {"dets": np.zeros((1, 0, 5), np.float32), "labels": np.zeros((1, 0), np.int64)}
    assert head.contradiction(nothing) is None
    assert len(head.decode(nothing, 0, PredictOptions())) == 0


def test_labels_that_are_logits_are_another_family():
    rows = outputs()
    rows["labels"] = np.zeros((1, 4, 80), np.float32)
    assert told(rows).family != "mmdeploy"
