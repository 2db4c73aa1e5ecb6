"""The logits and boxes of queries, against a plain computation, and what a signature must have."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel

SIZE = (240, 320)
RNG = np.random.default_rng(5)


def answer(queries=12, columns=7, dtype=np.float32):
    logits = RNG.normal(-1, 3, (2, queries, columns)).astype(dtype)
    return {"logits": logits, "boxes": RNG.random((2, queries, 4)).astype(dtype)}


def opened(family):
    return FAMILIES[family].open(("logits", "boxes"), SIZE)


def plainly(family, logits, boxes, conf):
    """(score, class, box) of every query and class, in Python's own numbers."""
    first, end = {
        "rfdetr-background-first": (1, len(logits[0])),
        "rfdetr-background-last": (0, len(logits[0]) - 1),
        "detr": (0, len(logits[0]) - 1),
    }.get(family, (0, len(logits[0])))
    for row, (x, y, w, h) in zip(logits.tolist(), boxes.tolist(), strict=True):
        if family == "detr":
            whole = sum(math.exp(value) for value in row)
            scores = [math.exp(value) / whole for value in row]
        else:
            scores = [1 / (1 + math.exp(-value)) for value in row]
        found = [(score, column) for column, score in enumerate(scores[first:end])]
        box = [(x - w / 2) * 320, (y - h / 2) * 240, (x + w / 2) * 320, (y + h / 2) * 240]
        for score, column in [max(found)] if family == "detr" else found:
            if score >= conf:
                yield score, column, box


ALL = ("rtdetr-raw", "detr", "rfdetr", "rfdetr-background-last", "rfdetr-background-first")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("family", ALL)
@given(conf=st.floats(0, 1))
def test_the_numbers_are_those_of_a_plain_computation(family, dtype, conf):
    outputs = answer(dtype=dtype)
    found = opened(family).decode(outputs, 1, PredictOptions(conf=conf))
    near = list(plainly(family, outputs["logits"][1], outputs["boxes"][1], conf - 1e-6))
    want = sorted(near, key=lambda row: -row[0])
    # One beside the threshold may fall either way.
    assert len([row for row in want if row[0] > conf + 1e-6]) <= len(found) <= len(want)
    for score, column, box, row in zip(
        found.scores, found.class_ids, found.boxes, want[: len(found)], strict=True
    ):
        assert (score, column) == (pytest.approx(row[0], abs=1e-6), row[1])
        assert box == pytest.approx(row[2], abs=1e-2)


def test_a_query_may_be_of_two_classes_where_each_has_its_own_sigmoid():
    outputs = {"logits": np.full((1, 1, 3), 2.0, np.float32), "boxes": np.full((1, 1, 4), 0.5)}
    assert opened("rtdetr-raw").decode(outputs, 0, PredictOptions()).class_ids.tolist() == [0, 1, 2]
    assert opened("detr").decode(outputs, 0, PredictOptions()).class_ids.tolist() == [0]


@pytest.mark.parametrize("family", ALL)
def test_options_keep_the_best_of_the_wanted_classes(family):
    outputs = answer(queries=40)
    everything = opened(family).decode(outputs, 0, PredictOptions(conf=0))
    wanted = PredictOptions(conf=0, classes=(2, 4), max_det=5)
    few = opened(family).decode(outputs, 0, wanted)
    kept = np.isin(everything.class_ids, (2, 4))
    assert few.scores.tolist() == everything.scores[kept][:5].tolist()
    assert few.boxes.tolist() == everything.boxes[kept][:5].tolist()


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_broken_numbers_give_no_boxes(family, bad):
    for name in ("logits", "boxes"):
        broken = answer()
        broken[name][:] = bad
        assert len(opened(family).decode(broken, 0, PredictOptions(conf=0))) == 0
        opened(family).contradiction(broken)
    sprinkled = answer()
    sprinkled["boxes"][0, 0, 2] = bad
    sprinkled["logits"][0, 1, 3] = bad
    found = opened(family).decode(sprinkled, 0, PredictOptions(conf=0.001))
    assert len(found) > 0
    assert np.isfinite(found.boxes).all()
    assert np.isfinite(found.scores).all()


@pytest.mark.parametrize("family", ALL)
def test_nothing_is_excluded_where_nothing_is_told(family):
    empty = {"logits": np.zeros((1, 0, 7), np.float32), "boxes": np.zeros((1, 0, 4), np.float32)}
    zeros = {"logits": np.zeros((1, 30, 7), np.float32), "boxes": np.zeros((1, 30, 4), np.float32)}
    assert opened(family).contradiction(empty) is None
    assert opened(family).contradiction(zeros) is None
    assert len(opened(family).decode(empty, 0, PredictOptions())) == 0


def model(first, second, names, size=(320, 320), metadata=None, dtype="float32"):
    inputs = [TensorSpec("images", "float32", (-1, 3, *size))]
    outputs = [
        TensorSpec(name, dtype, (-1, *shape))
        for name, shape in zip(names, (first, second), strict=True)
    ]
    return recognise(inputs, outputs, metadata or {}), inputs


PRED, HF, RF = ("pred_logits", "pred_boxes"), ("logits", "pred_boxes"), ("dets", "labels")


@pytest.mark.parametrize(
    ("first", "second", "names", "metadata", "family", "classes"),
    [
        ((300, 92), (300, 4), HF, {}, "detr", 91),
        ((300, 1), (300, 4), PRED, {}, "rtdetr-raw", 1),
        ((300, 3), (300, 4), PRED, {"names": "['a', 'b', 'c']"}, "rtdetr-raw", 3),
        ((300, 3), (300, 4), PRED, {"names": "['a', 'b']"}, "detr", 2),
        ((300, 80), (300, 4), PRED, {"model_family": "deim"}, "rtdetr-raw", 80),
        ((100, 92), (100, 4), PRED, {"model_family": "detr"}, "detr", 91),
        ((300, 91), (300, 4), PRED, {"names": str(["a"] * 80)}, "rtdetr-raw", 91),
        ((50, 4), (50, 4), RF, {"names": "['a', 'b', 'c']"}, "rfdetr-background-last", 3),
        ((50, 4), (50, 91), RF, {"names": str(["a"] * 80)}, "rfdetr", 91),
    ],
)
def test_names_and_metadata_tell_the_family(first, second, names, metadata, family, classes):
    told, inputs = model(first, second, names, metadata=metadata)
    assert (told.family, told.num_classes) == (family, classes)
    pair = (names[1], names[0]) if names is RF else names
    assert open_head(told, inputs).outputs == pair


@pytest.mark.parametrize(
    ("first", "second", "names", "metadata", "because"),
    [
        ((2100, 4), (2100, 4), PRED, {}, "fits yolo-nas, ppyoloe and damo-yolo, and"),
        ((2101, 4), (2101, 4), PRED, {}, "1000 queries at most, and the model 2101"),
        ((100, 80), (99, 4), PRED, {}, "100 rows of logits, and 99 of boxes"),
        ((100, 80), (100, 4), PRED, {"names": "['a']"}, "the metadata or --labels name 1"),
        ((100, 80), (100, 4), PRED, {}, "fits detr and rtdetr-raw, and"),
        ((50, 4), (50, 4), RF, {}, "fits rfdetr, rfdetr-background-last and"),
        ((100, 5), (100,), RF, {}, "no family that Fovea decodes"),
    ],
)
def test_other_models_are_left_alone(first, second, names, metadata, because):
    told, _ = model(first, second, names, metadata=metadata)
    assert told.family is None
    assert because in told.reason


def test_boxes_need_the_size_of_the_input():
    told, inputs = model((50, 91), (50, 4), ("labels", "dets"), size=(-1, -1))
    with pytest.raises(UnsupportedModel, match="--size"):
        open_head(told, inputs)
