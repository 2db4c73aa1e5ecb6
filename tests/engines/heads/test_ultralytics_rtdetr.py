"""Ultralytics' RT-DETR, beside YOLOv10, whose rows have as many columns."""

import numpy as np
import pytest
from tests.engines.heads.expected import File

from fovea_engines.evaluation.observe import Observer
from fovea_engines.heads.recognise import recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

pytestmark = pytest.mark.real

RANKED, RAW = "ultralytics-rtdetr", "ultralytics-rtdetr-raw"


@pytest.mark.parametrize("name", ["ultralytics-rtdetr", "ultralytics-rtdetr-clothes"])
def test_rows_are_those_of_the_family(shared, name):
    file = File(shared, name)
    assert file.recognise().family == file.recognise(metadata=False).family == RANKED
    file.assert_expected()


def test_yolov10_stays_what_it_is_without_metadata(shared):
    graph = load(shared / "models" / "yolov10n.onnx").proto
    seen = Observer(graph)
    told = recognise(graph_inputs(graph), graph_outputs(graph), {}, observe=seen)
    assert told.family == "yolov10"
    excluded = {v.family: v.against for v in told.verdicts if v.against}
    assert "no fractions" in excluded[RANKED]
    assert excluded.keys() >= {RANKED, RAW}


@pytest.fixture(scope="module")
def rows(shared):
    """Return the outputs of the 8.4 export for bus.jpg."""
    file = File(shared, "ultralytics-rtdetr")
    return file.run(file.images["bus.jpg"][0], file.spec(RANKED))[0]["output0"]


def unranked(rows, classes=80):
    """Rearrange the rows as versions before 8.4 export them: a probability for each class."""
    old = np.full((*rows.shape[:2], 4 + classes), 0.01, np.float32)
    old[..., :4] = rows[..., :4]
    np.put_along_axis(old, 4 + rows[..., 5:6].astype(int) % classes, rows[..., 4:5], axis=2)
    return old


def test_probabilities_of_each_class_give_the_same_boxes(rows):
    ranked, raw = (FAMILIES[name].open(("o",), (320, 320)) for name in (RANKED, RAW))
    want = ranked.decode({"o": rows}, 0, PredictOptions())
    found = raw.decode({"o": unranked(rows)}, 0, PredictOptions())
    assert len(want) > 10
    assert found.boxes.tolist() == want.boxes.tolist()
    assert found.scores.tolist() == want.scores.tolist()
    assert found.class_ids.tolist() == want.class_ids.tolist()


@pytest.mark.parametrize(
    ("family", "change", "says"),
    [
        (RANKED, lambda rows: np.multiply(rows, [320, 320, 320, 320, 1, 1]), "no fractions"),
        (RANKED, lambda rows: rows[..., [0, 1, 2, 3, 5, 4]], "no probability"),
        (RANKED, lambda rows: unranked(rows, 2), "no class ids"),
        (RANKED, lambda rows: np.add(rows, [0, 0, 1, 1, 0, 0]), "no centres"),
        (RAW, lambda rows: rows, "no probability"),
        (RAW, lambda rows: np.where([False] * 5 + [True], rows % 2, rows), "whole numbers only"),
        (RAW, lambda rows: unranked(np.multiply(rows, [320, 320, 320, 320, 1, 1])), "no fractions"),
    ],
)
def test_numbers_of_another_form_are_excluded(rows, family, change, says):
    head = FAMILIES[family].open(("o",), (320, 320))
    good = rows if family == RANKED else unranked(rows)
    assert head.contradiction({"o": good}) is None
    assert says in head.contradiction({"o": change(rows)})


@pytest.mark.parametrize("family", [RANKED, RAW])
def test_broken_and_missing_numbers_give_no_boxes(rows, family):
    head = FAMILIES[family].open(("o",), (320, 320))
    for bad in (np.nan, np.inf, -np.inf):
        assert len(head.decode({"o": np.full_like(rows, bad)}, 0, PredictOptions(conf=0))) == 0
    for empty in (rows[:, :0], rows * 0):
        assert head.contradiction({"o": empty}) is None
        assert len(head.decode({"o": empty}, 0, PredictOptions())) == 0


@pytest.mark.parametrize(
    ("shape", "metadata", "family", "classes"),
    [
        ((300, 84), {}, RAW, 80),
        ((300, 84), {"names": str(["a"] * 80)}, RAW, 80),
        ((300, 6), {"head": "RTDETRDecoder", "names": str(["a"] * 80)}, RANKED, 80),
        ((300, 6), {"head": "v10Detect"}, "yolov10", None),
        ((300, 6), {}, "yolov10", None),
        ((300, 84), {"names": "['a']"}, None, None),
        ((5000, 84), {"head": "RTDETRDecoder"}, None, None),
    ],
)
def test_shapes_and_metadata(shape, metadata, family, classes):
    image = [TensorSpec("images", "float32", (-1, 3, 640, 640))]
    told = recognise(image, [TensorSpec("output0", "float32", (-1, *shape))], metadata)
    assert (told.family, told.num_classes) == (family, classes)
