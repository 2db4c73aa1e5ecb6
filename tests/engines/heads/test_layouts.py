"""No layout of boxes is misread: a generator of layouts of what YOLOv8n finds on photographs.

`READ` lists the layouts that are read, and these give YOLOv8n's boxes. Of all others a build asks,
or it serves tensors. Class ids are those that the model writes.
"""

from functools import partial
from itertools import permutations, product

import numpy as np
import pytest

from fovea_engines.evaluation.observe import Observer
from fovea_engines.evaluation.preprocessing import find_misplacement
from fovea_engines.heads.presets import default_preprocess
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

pytestmark = [pytest.mark.real, pytest.mark.slow]

SIDE, ROWS, CONF, LEAST = 640, 300, 0.25, 0.001
IMAGE = [TensorSpec("images", "float32", (-1, 3, SIDE, SIDE))]


def centred(boxes):
    return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], axis=1)


def from_corner(boxes):
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


CORNERS, TURNED, CENTRED = "x1 y1 x2 y2", "y1 x1 y2 x2", "cx cy w h"
FORMS = {
    CORNERS: lambda boxes: boxes,
    TURNED: lambda boxes: boxes[:, [1, 0, 3, 2]],
    "x1 x2 y1 y2": lambda boxes: boxes[:, [0, 2, 1, 3]],
    "x2 y2 x1 y1": lambda boxes: boxes[:, [2, 3, 0, 1]],
    CENTRED: centred,
    "cy cx h w": lambda boxes: centred(boxes)[:, [1, 0, 3, 2]],
    "w h cx cy": lambda boxes: centred(boxes)[:, [2, 3, 0, 1]],
    "x1 y1 w h": from_corner,
    "y1 x1 h w": lambda boxes: from_corner(boxes)[:, [1, 0, 3, 2]],
    "w h x1 y1": lambda boxes: from_corner(boxes)[:, [2, 3, 0, 1]],
}
PIXELS, FRACTIONS = 1, SIDE
ORDERS = tuple(map("".join, permutations("bsc")))
BOX_SCORE_CLASS, BOX_CLASS_SCORE, CLASS_SCORE_BOX = "bsc", "bcs", "csb"
FILLS = [
    (0, 0, CONF),
    (0, -1, CONF),
    (0, None, LEAST),
    (1, 0, LEAST),
    (1, -1, CONF),
    (1, None, CONF),
]
"""The number of the first class, what the class of padding is, and the least score of a row."""


class Network:
    """YOLOv8n's answers for the photographs, by whether they are moved, and where they lie.

    Attributes:
        raw: output [84, boxes] of each photograph.
        found: objects of each, by the least score, too.
    """

    def __init__(self, path):
        graph = normalise(load(path).proto, None, lambda note: None)
        observer, spec = Observer(graph), default_preprocess("yolov8", graph_inputs(graph), {})
        self.places = observer.places(spec)
        named = recognise(IMAGE, [TensorSpec("raw", "float32", (-1, 84, 8400))], {}, "yolov8")
        head, self.raw, self.found = open_head(named, IMAGE), {}, {}
        for moved in (False, True):
            seen = [next(iter(each.values())) for each in observer.seen(spec, moved=moved)]
            self.raw[moved] = [output[0] for output in seen]
            for least in (CONF, LEAST):
                options = PredictOptions(conf=least, max_det=ROWS)
                found = [head.decode({"raw": output}, 0, options) for output in seen]
                self.found[moved, least] = found


class Recorded:
    """The outputs of a network in another layout, as an observer sees them."""

    def __init__(self, network, outputs):
        self.places = lambda spec: network.places
        self._outputs = outputs

    def __call__(self, family):
        return self._outputs[False]

    def seen(self, spec, *, moved=False):
        return self._outputs[moved]


class Shaped:
    """A family that judges outputs of one declaration once: hundreds of layouts share each."""

    def __init__(self, head):
        self._head = head
        self._known = {}

    def __getattr__(self, name):
        return getattr(self._head, name)

    def fit(self, signature):
        assert not signature.metadata, "all that differs is the size and the outputs"
        key = signature.size, signature.outputs
        if key not in self._known:
            self._known[key] = self._head.fit(signature)
        return self._known[key]


@pytest.fixture(scope="module", autouse=True)
def shapes_judged_once():
    with pytest.MonkeyPatch.context() as patch:
        shaped = {name: Shaped(head) for name, head in FAMILIES.items()}
        patch.setattr("fovea_engines.heads.recognise.FAMILIES", shaped)
        yield


@pytest.fixture(scope="module")
def network(shared):
    return Network(shared / "models" / "yolov8n.onnx")


def declared(name, arrays):
    """The declaration of an output: the batch, and lengths that differ, are dynamic."""
    shapes = np.array([array.shape for array in arrays])
    kept = [
        length if (column == length).all() else -1
        for column, length in zip(shapes.T, shapes[0].tolist(), strict=True)
    ]
    first = -1 if arrays[0].ndim > 1 else kept[0]
    return TensorSpec(name, str(arrays[0].dtype), (first, *kept[1:]))


def family_of(network, outputs, first=0):
    """The family that reads outputs, rightly; None where a build asks or serves tensors.

    The outputs are of each photograph, by whether they are moved.
    """
    seen = Recorded(network, outputs)
    names = outputs[False][0]
    specs = [declared(name, [each[name] for each in outputs[False]]) for name in names]
    told = recognise(IMAGE, specs, {}, observe=seen)
    if told.family is None:
        return None
    if find_misplacement(told, IMAGE, seen, default_preprocess("yolov8", IMAGE, {})):
        return None
    head = open_head(told, IMAGE)
    for each, want in zip(outputs[False], network.found[False, CONF], strict=True):
        found = head.decode(each, 0, PredictOptions(conf=CONF))
        assert found.boxes == pytest.approx(want.boxes, abs=0.1), told.reason
        assert found.scores == pytest.approx(want.scores, abs=1e-4), told.reason
        ids = want.class_ids + first - getattr(head, "first_class", 0)
        assert found.class_ids.tolist() == ids.tolist(), told.reason
    return told.family


def parts(found, form, unit, first, fill):
    """Boxes, scores and class ids by their letters, filled up."""
    boxes = FORMS[form](found.boxes) / np.float32(unit)
    columns = {"b": boxes, "s": found.scores, "c": found.class_ids + np.float32(first)}
    if fill is None:
        return columns
    padded = {
        key: np.zeros((ROWS, *column.shape[1:]), np.float32) for key, column in columns.items()
    }
    padded["c"][:] = fill
    for key, column in columns.items():
        padded[key][: len(column)] = column
    return padded


def table(columns, order):
    rows = [columns[key].reshape(len(columns["s"]), -1) for key in order]
    return np.concatenate(rows, axis=1, dtype=np.float32)


def rows(columns, order):
    return {"output": table(columns, order)[None]}


def flat_rows(columns, order):
    return {"output": table(columns, order)}


def numbered(columns, order):
    found = table(columns, order)
    return {"output": np.concatenate([np.zeros((len(found), 1), np.float32), found], axis=1)}


def counted(columns, order):
    return {"output": table(columns, order), "count": np.array([len(columns["s"])], np.int32)}


def tensors(columns, order, names=("a", "b", "c"), batch=True, whole=np.int64):
    """Boxes, scores and class ids as tensors of their own, in an order."""
    columns = columns | {"c": columns["c"].astype(whole)}
    called = dict(zip("bsc", names, strict=True))
    return {called[key]: columns[key][None] if batch else columns[key] for key in order}


def four(columns, order, whole):
    count = np.array([[np.count_nonzero(columns["s"])]], np.int32)
    return {"d": count} | tensors(columns, order, whole=whole)


def scored(columns, order):
    """Boxes with a score each, and the class ids."""
    boxes = table(columns, order.replace("c", ""))
    return {"dets": boxes[None], "labels": columns["c"].astype(np.int64)[None]}


NAMED = ("boxes", "scores", "labels")
IN_PIXELS = {(order, CORNERS, PIXELS): "{}" for order in ORDERS}


def always(family):
    return dict.fromkeys(IN_PIXELS, family)


READ = {
    "rows": (rows, {
        (BOX_SCORE_CLASS, CORNERS, PIXELS): "yolov10",
        (BOX_SCORE_CLASS, CENTRED, FRACTIONS): "ultralytics-rtdetr",
    }),
    "rows without a batch": (flat_rows, {}),
    "rows after the image's number": (numbered, {
        (BOX_SCORE_CLASS, CORNERS, PIXELS): "yolonas-flat",
        (BOX_CLASS_SCORE, CORNERS, PIXELS): "yolov7-end2end",
    }),
    "rows and their number": (counted, {(CLASS_SCORE_BOX, CORNERS, PIXELS): "paddle"}),
    "tensors": (tensors, {}),
    "tensors, named": (partial(tensors, names=NAMED), always("rtdetr")),
    "tensors without a batch": (partial(tensors, batch=False), always("torchvision")),
    "four tensors": (partial(four, whole=np.int32), always("efficientnms")),
    "four tensors of floats": (partial(four, whole=np.float32), {
        **{(order, CORNERS, PIXELS): "efficientnms" for order in ("bsc", "sbc", "scb")},
        **{(order, TURNED, FRACTIONS): "tflite-detection" for order in ("bcs", "cbs", "csb")},
    }),
    "boxes with scores": (scored, {
        (order, CORNERS, PIXELS): "mmdeploy" for order in ("bsc", "bcs", "cbs")
    }),
}  # fmt: skip


class Answers(dict):
    """The outputs of every photograph, by whether they are moved; written as they are looked at.

    Most layouts are refused without a look at those that are moved.
    """

    def __init__(self, found, write):
        self._found, self._write = found, write

    def __missing__(self, moved):
        self[moved] = [*map(self._write, self._found[moved])]
        return self[moved]


def answers(network, least, write):
    return Answers({moved: network.found[moved, least] for moved in (False, True)}, write)


@pytest.mark.parametrize("container", READ)
def test_answers_are_read_right_or_not_at_all(network, container):
    in_order, read = READ[container]
    for case in product(ORDERS, FORMS, (PIXELS, FRACTIONS), FILLS):
        order, form, unit, (first, fill, least) = case
        how = partial(parts, form=form, unit=unit, first=first, fill=fill)
        outputs = answers(network, least, lambda found, h=how, o=order: in_order(h(found), o))
        want = read.get((order, form, unit))
        if want == "tflite-detection" and first == 1:
            want = None  # Those of the object detection API have ids from 1.
        if want == "torchvision" and first == 0:
            want = None  # torchvision's 0 is the background, which it never returns.
        assert family_of(network, outputs, first) == want, case


@pytest.mark.parametrize("form", [CORNERS, CENTRED, "x1 y1 w h"])
@pytest.mark.parametrize("unit", [PIXELS, FRACTIONS])
@pytest.mark.parametrize(("first", "fill"), [(0, 0), (1, None)], ids=["padded", "ids from 1"])
def test_no_order_of_columns_is_misread(network, form, unit, first, fill):
    """They are mixed, as are those of a box with its score."""
    how = partial(parts, form=form, unit=unit, first=first, fill=fill)
    usual = {
        moved: [table(how(found), BOX_SCORE_CLASS) for found in network.found[moved, CONF]]
        for moved in (False, True)
    }
    for order in permutations(range(6)):
        outputs = Answers(usual, lambda each, o=order: {"output": each[None, :, o]})
        want = READ["rows"][1].get((BOX_SCORE_CLASS, form, unit))
        family = family_of(network, outputs, first)
        assert family == (want if order == (*range(6),) else None), order


DENSE = {
    ("bc", CENTRED, PIXELS, False, 1): "yolov8",
    ("bc", CORNERS, PIXELS, False, 1): "libreyolo-yolo9",
    ("boc", CENTRED, PIXELS, False, 2): "yolov6",
}
"""Order, form, unit, if scores are logits, and the axis of the columns; "o" is always 1."""


def dense(raw, order, form, unit, logits, axis):
    boxes, classes = raw[:4].T, raw[4:].T
    half = boxes[:, 2:] / 2
    boxes = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    if logits:
        within = classes.clip(1e-6, 1 - 1e-6)
        classes = np.log(within / (1 - within))
    columns = {"b": FORMS[form](boxes) / unit, "c": classes, "o": np.ones((len(boxes), 1))}
    found = np.concatenate([columns[key] for key in order], axis=1, dtype=np.float32)
    return found.T if axis == 1 else found


@pytest.mark.parametrize("order", ["bc", "cb", "boc", "bco", "obc"])
def test_grids_are_read_right_or_not_at_all(network, order):
    for case in product([order], FORMS, (PIXELS, FRACTIONS), (False, True), (1, 2)):
        outputs = Answers(network.raw, lambda raw, c=case: {"output": dense(raw, *c)[None]})
        assert family_of(network, outputs) == DENSE.get(case), case


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("unit", [PIXELS, FRACTIONS])
def test_boxes_and_scores_of_a_grid_are_asked_for(network, unit, logits):
    """Three families have corners in pixels beside their scores, and nothing tells which."""
    for form in FORMS:
        write = partial(dense, form=form, unit=unit, logits=logits, axis=2)
        outputs = Answers(network.raw, lambda raw, w=write: {n: w(raw, n)[None] for n in "bc"})
        assert family_of(network, outputs) is None, form
