"""Models that compute something else than their shapes promise are never misread.

Each case changes the end of a real model's graph, as exports and scripts of users do.
"""

from functools import cache

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.edit.names import rename, strip_metadata
from fovea_engines.evaluation.observe import Observer, recognise_graph
from fovea_engines.heads.recognise import recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.plain_session import open_plain
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.progress import Progress
from fovea_preprocess.errors import FoveaError, InvalidOption, UnsupportedModel

pytestmark = [pytest.mark.real, pytest.mark.slow]


class Surgeon:
    """Appends operators to the only output of a model, which keeps its name."""

    def __init__(self, path, metadata=True):
        self.model = load(path).proto
        [self.output] = self.model.graph.output
        self.name = self.output.name
        for node in self.model.graph.node:
            node.output[:] = ["raw" if name == self.name else name for name in node.output]
            node.input[:] = ["raw" if name == self.name else name for name in node.input]
        self.last, self.count = "raw", 0
        if not metadata:
            del self.model.metadata_props[:]

    def __call__(self, operator, *constants, **attributes):
        self.count += 1
        names = [f"planted/{self.count}/{i}" for i in range(len(constants))]
        tensors = map(numpy_helper.from_array, constants, names)
        self.model.graph.initializer.extend(tensors)
        made = f"planted/{self.count}"
        node = helper.make_node(operator, [self.last, *names], [made], **attributes)
        self.model.graph.node.append(node)
        self.last = made
        return self

    def take(self, columns, axis):
        return self("Gather", np.array(columns, np.int64), axis=axis)

    def scale(self, factors, axis):
        shape = [1, 1, 1]
        shape[axis] = -1
        return self("Mul", np.array(factors, np.float32).reshape(shape))

    def finished(self, swapped=False):
        self.model.graph.node[-1].output[0] = self.name
        if swapped:
            dims = self.output.type.tensor_type.shape.dim
            lengths = [dims[0].dim_value or "batch", dims[2].dim_value, dims[1].dim_value]
            kept = helper.make_tensor_value_info(self.name, onnx.TensorProto.FLOAT, lengths)
            self.output.CopyFrom(kept)
        return self.model


def logits(surgeon, first, columns, axis):
    """Undo the sigmoid of the columns from `first` on: log(p / (1 - p))."""
    inside = np.zeros(columns, np.float32)
    inside[first:] = 1
    surgeon.scale(1 - 2e-6 * inside, axis)
    raw = surgeon.last
    shape = [1, 1, 1]
    shape[axis] = -1
    chosen = (inside > 0).reshape(shape)
    surgeon("Clip", np.float32(1e-6), np.float32(1 - 1e-6))
    clipped = surgeon.last
    surgeon("Mul", np.float32(-1))("Add", np.float32(1))
    nodes, other = surgeon.model.graph, surgeon.last
    nodes.node.append(helper.make_node("Div", [clipped, other], ["planted/odds"]))
    nodes.node.append(helper.make_node("Log", ["planted/odds"], ["planted/logits"]))
    nodes.initializer.append(numpy_helper.from_array(chosen, "planted/chosen"))
    where = ["planted/chosen", "planted/logits", raw]
    nodes.node.append(helper.make_node("Where", where, ["planted/where"]))
    surgeon.last = "planted/where"
    return surgeon


BOXES = [1 / 640] * 4
V8 = list(range(84))
TRANSPOSED = {"perm": [0, 2, 1]}
CASES = {
    "v8, fractions of the image": (
        "yolov8n", lambda s: s.scale([*BOXES, *[1] * 80], 1), "yolov8", "boxes are not in pixels"
    ),
    "v8, scores without sigmoid": (
        "yolov8n", lambda s: logits(s, 4, 84, 1), "yolov8", "not a probability"
    ),
    "v8, transposed": (
        "yolov8n", lambda s: s("Transpose", **TRANSPOSED), "rtmdet", "column 2 is not an x"
    ),
    "v8 from another class on, transposed": (
        "yolov8n",
        lambda s: s.take([*V8[:4], *V8[10:], *V8[4:10]], 1)("Transpose", **TRANSPOSED),
        "yolox-decoded", "the metadata or --labels name 80",
    ),
    "v8, cells for pixels": (
        "yolov8n", lambda s: s.scale([*[1 / 8] * 4, *[1] * 80], 1), "yolov8", "away from their"
    ),
    "v8, pixels of another size": (
        "yolov8n", lambda s: s.scale([*[1000 / 640] * 4, *[1] * 80], 1), "yolov8", "away from their"
    ),
    "v5, objectness last": (
        "yolov5n", lambda s: s.take([0, 1, 2, 3, *range(5, 85), 4], 2), "yolov5", "not an object"
    ),
    "v8, percent": (
        "yolov8n", lambda s: s.scale([*[1] * 4, *[100] * 80], 1), "yolov8", "not a probability"
    ),
    "v5, fractions of the image": (
        "yolov5n", lambda s: s.scale([*BOXES, *[1] * 81], 2), "yolov5", "boxes are not in pixels"
    ),
    "v5, without sigmoid": (
        "yolov5n", lambda s: logits(s, 4, 85, 2), "yolov5", "not a probability"
    ),
    "v5, transposed": (
        "yolov5n", lambda s: s("Transpose", **TRANSPOSED), "yolov8", "25200 boxes, but"
    ),
    "X, decoded head on a raw grid": (
        "yolox_nano", lambda s: s("Identity"), "yolox-decoded", "not sizes in pixels"
    ),
    "X, without sigmoid": (
        "yolox_nano", lambda s: logits(s, 4, 85, 2), "yolox", "not a probability"
    ),
}  # fmt: skip


def planted(shared, case):
    model, cut, family, says = CASES[case]
    surgeon = cut(Surgeon(shared / "models" / f"{model}.onnx"))
    return surgeon.finished(case.endswith("transposed")), family, says


def recognised(model, family=None, observe=None):
    """With an `observe` that has run the model, it is not run again."""
    facts = graph_inputs(model), graph_outputs(model), metadata_of(model)
    return recognise(*facts, family, observe or Observer(model))


class Tailed:
    """An observer of a model whose end was changed: it runs the end alone."""

    def __init__(self, whole, observe):
        graph, self._observe, self._known = whole.graph, observe, {}
        [self._name] = [output.name for output in graph.output]
        [first] = [i for i, node in enumerate(graph.node) if "raw" in node.output]
        constants = [c for c in graph.initializer if c.name.startswith("planted/")]
        raw = helper.make_tensor_value_info("raw", onnx.TensorProto.FLOAT, [None] * 3)
        end = helper.make_graph(graph.node[first + 1 :], "end", [raw], graph.output, constants)
        model = helper.make_model(end, opset_imports=whole.opset_import, ir_version=8)
        self._end = open_plain(model.SerializeToString())

    def __call__(self, family):
        outputs = self._observe(family)
        if id(outputs) not in self._known:
            found = [self._end.run(None, {"raw": each[self._name]}) for each in outputs]
            self._known[id(outputs)] = [{self._name: one} for [one] in found]
        return self._known[id(outputs)]


@pytest.fixture(scope="module")
def unchanged(shared):
    """The observer of each model as it is; many cases share it."""
    return cache(lambda model: Observer(load(shared / "models" / f"{model}.onnx").proto))


@pytest.mark.parametrize("case", CASES)
def test_numbers_exclude_the_family_with_metadata_and_without(shared, unchanged, case):
    model, family, says = planted(shared, case)
    observe = Tailed(model, unchanged(CASES[case][0]))
    raw_grid = case == "X, decoded head on a raw grid"
    assert recognised(model, None, observe).family == ("yolox" if raw_grid else None)
    with pytest.raises(UnsupportedModel, match=says):
        recognised(model, family, observe)
    del model.metadata_props[:]
    assert recognised(model, None, observe).family == ("yolox" if raw_grid else None)


@pytest.mark.parametrize("case", ["v8, fractions of the image", "X, without sigmoid"])
def test_a_build_stops_where_the_head_contradicts_the_numbers(shared, tmp_path, case):
    model, family, says = planted(shared, case)
    source = tmp_path / "planted.onnx"
    onnx.save(model, source)
    plan = BuildPlan(source, "planted", tmp_path / "models", family=family)
    with pytest.raises(FoveaError, match=says) as refused:
        build(plan)
    assert "it could be" in str(refused.value) or "leave --head out" in str(refused.value)
    assert not (tmp_path / "models" / "planted").exists()


def test_a_build_asks_between_two_heads(shared, tmp_path):
    """Without its metadata a RTMDet cannot be told from a PicoDet: the same output for each."""
    model = load(shared / "models" / "heads" / "rtmdet.onnx").proto
    del model.metadata_props[:]
    source = tmp_path / "rtmdet.onnx"
    onnx.save(model, source)
    plan = BuildPlan(source, "rtmdet", tmp_path / "models")
    with pytest.raises(InvalidOption, match="picodet"):
        build(plan)
    image = tmp_path / "models" / "rtmdet" / "failed-build" / "heads.jpg"
    assert image.read_bytes()[:2] == b"\xff\xd8"
    assert (
        build(BuildPlan(source, "rtmdet", tmp_path / "models", family="rtmdet")).family == "rtmdet"
    )
    tensors = build(BuildPlan(source, "raw", tmp_path / "models", family="tensors"))
    assert (tensors.family, tensors.task) == (None, "tensors")


def test_a_class_beside_an_objectness_may_be_sure_everywhere(shared):
    """YOLOv5 does not train the class of a model that has only one, and leaves it at .99998."""
    surgeon = Surgeon(shared / "models" / "yolov5n.onnx", metadata=False)
    surgeon.take([*range(5), 5], 2).scale([1, 1, 1, 1, 1, 0], 2)
    surgeon("Add", np.float32([0, 0, 0, 0, 0, 0.99998]))
    model = surgeon.finished()
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 6
    assert recognised(model).family == "yolov5"


def sure_rows(surgeon):
    """Make zeros of the rows [1, n, 6] that are less sure than .25, as exports with NMS fill up."""
    graph, rows = surgeon.model.graph, surgeon.last
    surgeon.take([4], 2)("Greater", np.float32(0.25))("Cast", to=onnx.TensorProto.FLOAT)
    graph.node.append(helper.make_node("Mul", [rows, surgeon.last], ["planted/sure"]))
    surgeon.last = "planted/sure"
    return surgeon


TO_SIZE = np.eye(6, dtype=np.float32)
TO_SIZE[0, 2] = TO_SIZE[1, 3] = -1
FRACTION = [*BOXES, 1, 1]
TURNED_ROWS = {
    "x1 y1 w h": lambda s: sure_rows(s)("MatMul", TO_SIZE),
    "y1 x1 y2 x2": lambda s: sure_rows(s).take([1, 0, 3, 2, 4, 5], 2),
}
OTHER_ROWS = {
    "class, corners, score": [5, 0, 1, 2, 3, 4],
    "score, class, corners": [4, 5, 0, 1, 2, 3],
}


@pytest.fixture(scope="module")
def rows(shared, tmp_path_factory):
    """A YOLOv10 without its metadata, simplified: each end then takes half the time to build."""
    source = tmp_path_factory.mktemp("rows") / "simple.onnx"
    onnx.save(normalise(load(shared / "models" / "yolov10n.onnx").proto), source)
    return lambda: Surgeon(source, metadata=False)


def plan_of(surgeon, folder):
    source = folder / "planted.onnx"
    onnx.save(surgeon.finished(), source)
    return BuildPlan(source, "planted", folder / "models", "onnxruntime")


def test_few_rows_are_built(rows, tmp_path):
    assert build(plan_of(sure_rows(rows()), tmp_path)).family == "yolov10"


@pytest.mark.parametrize("numbers", TURNED_ROWS)
def test_few_rows_of_other_numbers_are_told_by_images_that_are_moved(rows, tmp_path, numbers):
    """Here all boxes are large, so that left and top are less than width and height."""
    plan = plan_of(TURNED_ROWS[numbers](rows()), tmp_path)
    with pytest.raises(UnsupportedModel, match=f"if the columns are {numbers}|swapped"):
        build(plan)


@pytest.mark.parametrize("order", OTHER_ROWS)
def test_padding_is_no_evidence_of_queries(rows, tmp_path, order):
    surgeon = sure_rows(rows()).scale([*BOXES, 1, 1], 2).take(OTHER_ROWS[order], 2)
    head = prepare(plan_of(surgeon, tmp_path), Progress()).head
    assert (head.family, head.open) == (None, ())


def test_renamed_outputs_do_not_tell_the_preprocessing(shared, tmp_path):
    """D-FINE takes 0 to 1, and RF-DETR, whose names these are, mean and std."""
    names = {"pred_logits": "labels", "pred_boxes": "dets"}
    source = onnx.load(shared / "models" / "heads" / "libreyolo-dfine.onnx")
    path = tmp_path / "renamed.onnx"
    onnx.save(strip_metadata(rename(source, names).model).model, path)
    plan = BuildPlan(path, "m", tmp_path / "r", family="rfdetr")
    told, _ = recognise_graph(onnx.load(path), "rfdetr")
    assert told.guessed.startswith("its outputs were renamed")
    card = build(plan)
    assert (card.preprocess.mean, card.preprocess.scale) == ((0, 0, 0), 1 / 255)
    assert card.preprocess_from.startswith("0-to-1, because the model finds most")


RAW = FAMILIES["yolov5-raw"]
LEVELS = {f"/model.24/Transpose{end}_output_0": 80 >> i for i, end in enumerate(("", "_1", "_2"))}
OWN = np.array(RAW.anchors, np.float32).reshape(3, 3, 2)


def cut(shared, metadata=None, names=LEVELS):
    """YOLOv5n before its decoding: three levels of logits."""
    model = onnx.load(shared / "models" / "yolov5n.onnx")
    del model.graph.output[:], model.metadata_props[:]
    for name, side in names.items():
        shape = ["batch", 3, side, side, 85]
        model.graph.output.append(
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        )
    helper.set_model_props(model, metadata or {})
    return model


def test_anchors_are_asked_for_or_told_by_the_metadata(shared):
    seen = Observer(cut(shared))
    assert recognised(cut(shared), None, seen).open == ("yolov5-raw", "yolov7-raw")
    for family in ("yolov5-raw", "yolov7-raw"):
        anchors = np.array(FAMILIES[family].anchors).reshape(3, 3, 2).tolist()
        assert recognised(cut(shared, {"anchors": str(anchors)}), None, seen).family == family
    for anchors in ("[[1, 2]]", "[[1], [2, 3]]", "'text'", "{}"):
        found = recognised(cut(shared, {"anchors": anchors}), None, seen)
        assert found.family is None
        assert "other anchors" in found.reason
    after = {name.replace("Transpose", "Sigmoid"): side for name, side in LEVELS.items()}
    found = recognised(cut(shared, names=after))
    assert found.family is None
    assert "not logits" in found.reason


SMALLER = [[[3, 4], [4, 9], [9, 6]], [[7, 16], [17, 9], [15, 19]], [[33, 17], [26, 37], [61, 50]]]
LARGER = [
    [[19, 27], [44, 40], [38, 94]],
    [[96, 68], [86, 152], [180, 137]],
    [[140, 301], [303, 264], [238, 542]],
]


@pytest.mark.parametrize("anchors", [SMALLER, LARGER, OWN[..., ::-1], OWN[::-1]])
def test_anchors_of_ones_own_are_told_by_the_sizes_of_objects(shared, anchors):
    """A model of other anchors gives other logits for the same sizes."""
    model, seen = cut(shared), []
    ratio = OWN / np.array(anchors)
    for outputs in Observer(model)("yolov5-raw"):
        changed = {}
        for (name, level), factor in zip(outputs.items(), ratio, strict=True):
            level = level.astype(np.float64)
            share = 1 / (1 + np.exp(-level[..., 2:4])) * np.sqrt(factor)[None, :, None, None]
            share = share.clip(1e-6, 1 - 1e-6)
            level[..., 2:4] = np.log(share / (1 - share))
            changed[name] = level.astype(np.float32)
        seen.append(changed)
    found = recognised(model, None, lambda _: seen)
    assert found.family is None
    assert not found.open
    assert "its anchors are different" in found.reason
