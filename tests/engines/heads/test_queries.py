"""Logits, boxes, masks and keypoints of queries, against a plain computation; signatures."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.heads.by_hand import told

from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import PERSON
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


def spread(count):
    """As many boxes of a tenth of the image, all over it."""
    places = np.linspace(0.05, 0.95, count, dtype=np.float32)
    return np.stack([places, places, 0 * places + 0.1, 0 * places + 0.1], axis=1)[None]


def trained(softmax):
    """Logits as of a trained model: most queries find nothing, and few are sure of a class."""
    rng = np.random.default_rng(3)
    logits = rng.normal(*((-3, 2) if softmax else (-6, 1)), (1, 300, 92 if softmax else 80))
    if softmax:
        logits[0, :, -1] = 8
    logits[0, np.arange(8), rng.integers(0, 80, 8)] = 12 if softmax else 2
    return logits.astype(np.float32)


@pytest.mark.parametrize("lower", [0, 30])
def test_a_softmax_and_a_sigmoid_each_exclude_each_other(lower):
    """What is taken from all logits leaves a softmax as it is."""
    boxes, softmax, sigmoid = spread(300), trained(True) - lower, trained(False)
    raw, detr = opened("rtdetr-raw"), opened("detr")
    assert raw.contradiction({"logits": sigmoid, "boxes": boxes}) is None
    assert 'not "none"' in detr.contradiction({"logits": sigmoid, "boxes": boxes})
    assert detr.contradiction({"logits": softmax, "boxes": boxes}) is None
    assert raw.contradiction({"logits": softmax, "boxes": boxes})
    # Two classes of which the last is the likelier one can be a class and "none".
    two = np.stack([sigmoid[..., 0], sigmoid[..., 0] + 2], axis=2)
    assert raw.contradiction({"logits": two, "boxes": boxes}) is None
    assert detr.contradiction({"logits": two, "boxes": boxes}) is None


@pytest.mark.parametrize("family", ALL)
def test_numbers_of_another_form_are_excluded(family):
    head, boxes, logits = opened(family), spread(300), trained(family == "detr")
    assert head.contradiction({"logits": logits, "boxes": boxes}) is None
    for change, says in (
        (boxes * 320, "not fractions"),
        (np.add(boxes, [0, 0, 1, 1]), "centres and sizes"),
    ):
        assert says in head.contradiction({"logits": logits, "boxes": change})
    probabilities = 1 / (1 + np.exp(-logits))
    assert "not logits" in head.contradiction({"logits": probabilities, "boxes": boxes})


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("rtdetr-raw-seg", ("pred_logits", "pred_boxes", "pred_masks")),
        ("rfdetr-seg", ("labels", "dets", "masks")),
        ("rfdetr-seg-background-last", ("labels", "dets", "masks")),
    ],
)
def test_a_query_has_its_mask(family, names):
    """Logits over the whole input, which are above 0 on the object."""
    logits, boxes = np.random.default_rng(0).normal(-9, 1, (1, 20, 91)), spread(20)
    logits[0, [3, 11], [5, 7]] = 3, 2
    masks = np.full((1, 20, 60, 80), -4, np.float32)
    masks[0, 3, 10:20, 30:50], masks[0, 11, 40:60, :20] = 4, 4
    outputs = dict(zip(names, (np.float32(logits), boxes, masks), strict=True))
    found = told(outputs, family=family, size=SIZE)
    assert (found.family, found.task) == (family, "segment")
    head = open_head(found, [TensorSpec("image", "float32", (-1, 3, *SIZE))])
    objects = head.decode(outputs, 0, PredictOptions())
    assert objects.class_ids.tolist() == [5, 7]
    for index, (top, bottom, left, right) in enumerate([(40, 80, 120, 200), (160, 240, 0, 80)]):
        want = np.zeros(SIZE, bool)
        want[top:bottom, left:right] = True
        assert (objects.masks.bitmap(index) != want).mean() < 0.002
    assert head.decode(outputs, 0, PredictOptions(mask="none")).masks is None


def keypoints(classes, columns=3):
    """Two persons, and a thing that has no keypoints, among five queries."""
    logits = np.full((1, 5, columns), -9, np.float32)
    logits[0, 0, classes - 1], logits[0, 1, classes - 1], logits[0, 2, columns - 1] = 3, 2, 1
    boxes = np.full((1, 5, 4), 0.5, np.float32)
    boxes[0, :, 0] = [0.25, 0.5, 0.75, 0.2, 0.3]
    points = np.zeros((1, 5, 17 * classes, 8), np.float32)
    points[0, :2, -17:, 0] = np.linspace(0, 1, 17)
    points[0, :2, -17:, 1] = [[0.25], [0.75]]
    points[0, :2, -17:, 2] = [[0], [9]]
    return {"dets": boxes, "labels": logits, "keypoints": points}


@pytest.mark.parametrize(
    ("family", "classes", "ids"),
    [
        ("rfdetr-keypoints", 1, [0, 0, 2]),
        ("rfdetr-keypoints", 2, [1, 1, 2]),
        ("rfdetr-keypoints-background-last", 2, [1, 1]),
        ("rfdetr-keypoints-background-first", 2, [0, 0, 1]),
    ],
)
def test_rfdetr_has_keypoints_of_the_class_that_was_found(family, classes, ids):
    outputs = keypoints(classes)
    found = told(outputs, family=family, size=SIZE)
    assert found.skeleton == PERSON
    head = FAMILIES[family].open(found.outputs, SIZE)
    objects = head.decode(outputs, 0, PredictOptions(conf=0.5))
    assert objects.class_ids.tolist() == ids
    person, other, *things = objects.keypoints
    assert person[:, 0] == pytest.approx(np.linspace(0, SIZE[1], 17))
    assert (person[:, 1] == SIZE[0] / 4).all()
    assert (other[:, 1] == SIZE[0] * 3 / 4).all()
    assert person[:, 2] == pytest.approx(0.5)
    assert other[:, 2] == pytest.approx(1, abs=1e-3)
    assert not np.any(things)


@pytest.mark.parametrize("count", [0, 5])
def test_keypoints_of_no_person_are_refused(count):
    outputs = keypoints(1)
    outputs["keypoints"] = outputs["keypoints"][:, :, :count]
    found = told(outputs, size=SIZE)
    assert found.family is None
    assert f"{count} keypoints" in found.reason


@pytest.mark.parametrize("more", ["masks", "keypoints", "depth"])
def test_what_is_more_than_boxes_is_not_ignored(more):
    specs = [
        TensorSpec("dets", "float32", (-1, 50, 4)),
        TensorSpec("labels", "float32", (-1, 50, 91)),
        TensorSpec(more, "float32", (1, 50, 3)),
    ]
    assert recognise([TensorSpec("x", "float32", (-1, 3, *SIZE))], specs, {}).family != "rfdetr"


@pytest.mark.parametrize(("family", "wanted"), [("rfdetr", ""), ("rfdetr-seg", " and masks")])
def test_renamed_outputs_are_told_their_names(family, wanted):
    shapes = {"output": (50, 4), "labels": (50, 91)} | ({"masks": (50, 8, 8)} if wanted else {})
    specs = [TensorSpec(name, "float32", (-1, *shape)) for name, shape in shapes.items()]
    inputs, wanted = (
        [TensorSpec("x", "float32", (-1, 3, *SIZE))],
        f"the names labels and dets{wanted}",
    )
    with pytest.raises(UnsupportedModel, match=f"{wanted} .*edit --rename OLD=NEW"):
        recognise(inputs, specs, {}, family)
    assert wanted in recognise(inputs, specs, {}).reason


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
    found, inputs = model(first, second, names, metadata=metadata)
    assert (found.family, found.num_classes) == (family, classes)
    pair = (names[1], names[0]) if names is RF else names
    assert open_head(found, inputs).outputs == pair


@pytest.mark.parametrize(
    ("first", "second", "names", "metadata", "because"),
    [
        (
            (2100, 4),
            (2100, 4),
            PRED,
            {},
            "fits yolo-nas, ppyoloe and damo-yolo; the outputs do not show",
        ),
        ((2101, 4), (2101, 4), PRED, {}, "at most 1000 queries, but the model has 2101"),
        ((100, 80), (99, 4), PRED, {}, "logits have 100 rows, but the boxes have 99"),
        ((100, 80), (100, 4), PRED, {"names": "['a']"}, "the metadata or --labels name 1"),
        ((100, 80), (100, 4), PRED, {}, "fits detr and rtdetr-raw; the outputs do not show"),
        ((50, 4), (50, 4), RF, {}, "fits rfdetr, rfdetr-background-last and"),
        ((100, 5), (100,), RF, {}, "no family that Fovea decodes"),
    ],
)
def test_other_models_are_left_alone(first, second, names, metadata, because):
    found, _ = model(first, second, names, metadata=metadata)
    assert found.family is None
    assert because in found.reason


def test_boxes_need_the_size_of_the_input():
    found, inputs = model((50, 91), (50, 4), ("labels", "dets"), size=(-1, -1))
    with pytest.raises(UnsupportedModel, match="--size"):
        open_head(found, inputs)
