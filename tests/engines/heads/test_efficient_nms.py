"""TensorRT's suppression plugin, in standard operators: against a plain computation."""

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.engines.real import bus, prepared, run
from tests.engines.tiny import constant

from fovea_engines.backends.registry import CPU_BACKENDS
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.presets import VARIANTS
from fovea_engines.onnx_graph.load import load
from fovea_preprocess.errors import UnsupportedModel

pytestmark = pytest.mark.slow

IOU, SCORE, MOST, BOXES, CLASSES = 0.45, 0.3, 20, 60, 3
NAMES = ("num_dets", "det_boxes", "det_scores", "det_classes")


def plainly(boxes, scores, *, coding=0, sigmoid=0, agnostic=0, background=-1, most=MOST):
    """Suppress candidate by candidate, best first, as the plugin's README says."""
    if coding:
        boxes = np.concatenate(
            [boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1
        )
    if sigmoid:
        scores = 1 / (1 + np.exp(-scores))
    candidates = [
        (scores[i, c], i, c)
        for i, c in np.argwhere(scores >= SCORE).tolist()
        if c != background
    ]  # fmt: skip
    kept = []
    for score, i, c in sorted(candidates, reverse=True):
        rivals = [box for _, box, other in kept if agnostic or other == c]
        if all(overlap(boxes[i], boxes[j]) <= IOU for j in rivals):
            kept.append((score, i, c))
    kept = kept[:most]
    return [boxes[i] for _, i, _ in kept], [s for s, _, _ in kept], [c for _, _, c in kept]


def overlap(a, b):
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    shared = np.prod(np.maximum(sides, 0))
    return shared / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared)


def plugin(boxes, scores, *, domain="TRT", most=MOST, **options):
    names = {
        "coding": "box_coding",
        "sigmoid": "score_activation",
        "agnostic": "class_agnostic",
        "background": "background_class",
    }
    attributes = {names[option]: value for option, value in options.items()}
    attributes |= {"iou_threshold": IOU, "score_threshold": SCORE, "max_output_boxes": most}
    node = helper.make_node("EfficientNMS_TRT", [boxes, scores], NAMES, domain=domain, **attributes)
    kinds = TensorProto.INT32, TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT32
    shapes = ["batch", 1], ["batch", most, 4], ["batch", most], ["batch", most]
    tensors = zip(NAMES, kinds, shapes, strict=True)
    return node, [helper.make_tensor_value_info(*each) for each in tensors]


def first(value):
    return value[0] if isinstance(value, list) else value


def alone(path, boxes, scores, *, opset=13, **options):
    node, outputs = plugin("boxes", "scores", **options)
    tensors = (("boxes", boxes), ("scores", scores))
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in tensors]
    graph = helper.make_graph([node], "nms", inputs, outputs)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("TRT", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return load(path).proto


def candidates(coding):
    """Two images of boxes that overlap much; the second has few scores over the threshold."""
    random = np.random.default_rng(coding)
    first = random.uniform(0, 60, (2, BOXES, 2))
    boxes = np.concatenate([first, random.uniform(10, 40, first.shape)], 2)
    if not coding:
        boxes[..., 2:] += boxes[..., :2]
    scores = random.uniform(0, 1, (2, BOXES, CLASSES))
    scores[1] /= 3.1
    return boxes.astype(np.float32), scores.astype(np.float32)


@pytest.mark.parametrize(("coding", "opset"), [(0, 13), (1, 17)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"domain": ""},
        {"agnostic": 1},
        {"background": 1},
        {"background": 0, "agnostic": 1},
        {"most": 5},
        {"most": 300},  # more than there are scores
        {"sigmoid": 1},
        {"background": [-1]},  # as YOLOv7 and YOLOv9 write both attributes
        {"background": [1], "agnostic": [0]},
    ],
)
def test_the_same_detections_as_by_the_plugin(tmp_path, coding, options, opset):
    boxes, scores = candidates(coding)
    if options.get("sigmoid"):
        scores = np.log(scores / (1 - scores))
    shapes = ["batch", BOXES, 4], ["batch", BOXES, CLASSES]
    model = alone(tmp_path / "m.onnx", *shapes, coding=[coding], opset=opset, **options)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run(NAMES, {"boxes": boxes, "scores": scores})
    plain = {option: first(value) for option, value in options.items() if option != "domain"}
    for image in range(2):
        corners, best, classes = plainly(boxes[image], scores[image], coding=coding, **plain)
        number = found[0][image, 0]
        assert number == len(best)
        np.testing.assert_allclose(found[1][image, :number], corners, atol=1e-4)
        np.testing.assert_allclose(found[2][image, :number], best, atol=1e-6)
        np.testing.assert_array_equal(found[3][image, :number], classes)
        for output in found[1:]:
            assert not output[image, number:].any()
    assert len({*found[0][:, 0]}) == 2 or options.get("most") == 5
    nothing = np.full_like(scores, -9) if options.get("sigmoid") else 0 * scores
    for output in session.run(NAMES, {"boxes": boxes, "scores": nothing}):
        assert not output.any()


@pytest.mark.parametrize(
    ("shapes", "options", "says"),
    [
        ([[1, 60, 3, 4], [1, 60, 3]], {}, r"\[1, 60, 3, 4\]"),
        ([[1, 60, 4], [1, 60, 3]], {"background": 3}, "background class 3"),
        ([[1, 60, 4], [1, 60, "c"]], {"background": 0}, "background class 0"),
        ([[1, 60, 4], [1, 60, 3]], {"opset": 11}, "opset 11"),
        ([[1, 60, 4], [1, 60, 3]], {"coding": [0, 1]}, r"box_coding = \[0, 1\]"),
        ([[1, 60, 4], [1, 60, 3]], {"background": "none"}, "background_class = 'none'"),
        ([[1, 60, 4], [1, 60, 3]], {"agnostic": math.nan}, "class_agnostic = nan"),
    ],
)
def test_what_has_no_equivalent_is_refused(tmp_path, shapes, options, says):
    with pytest.raises(UnsupportedModel, match=says):
        alone(tmp_path / "m.onnx", *shapes, **options)


@pytest.mark.parametrize(("coding", "status"), [([1], 0), ([1, 1], 1)])
def test_inspect_reads_lists_and_says_of_others_what_is_wrong(fovea, tmp_path, coding, status):
    onnx.save(numbered(coding), tmp_path / "nms.onnx")
    code, out, err = fovea("inspect", tmp_path / "nms.onnx")
    assert code == status
    assert ("box_coding = [1, 1]" in err) if status else ("num_dets" in out)
    assert "Traceback" not in out + err


def numbered(coding):
    """Pixels as boxes and scores in, the plugin's four outputs out."""
    node, outputs = plugin("boxes", "scores", coding=coding, background=[-1])
    nodes = [
        helper.make_node("Reshape", ["images", "rows"], ["all"]),
        helper.make_node("Split", ["all", "parts"], ["boxes", "scores"], axis=2),
        node,
    ]
    weights = [constant("rows", np.array([1, -1, 4 + CLASSES])), constant("parts", [4, CLASSES])]
    image = helper.make_tensor_value_info("images", 1, [1, 3, 14, 14])
    graph = helper.make_graph(nodes, "nms", [image], outputs, weights)
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("TRT", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_real_detector_that_ends_in_it_is_served(shared, tmp_path, backend):
    """YOLOv8 as exporters for TensorRT write it: rows, in two parts, into the plugin."""
    model = onnx.load(shared / "models" / "yolov8n.onnx")
    # Lists, as in YOLOv7 and YOLOv9.
    node, outputs = plugin("boxes", "scores", coding=[1], background=[-1])
    [raw] = (value.name for value in model.graph.output)
    model.graph.initializer.append(constant("parts", np.array([4, 80])))
    model.graph.node.extend(
        [
            helper.make_node("Transpose", [raw], ["rows"], perm=[0, 2, 1]),
            helper.make_node("Split", ["rows", "parts"], ["boxes", "scores"], axis=2),
            node,
        ]
    )
    del model.graph.output[:], model.metadata_props[:]
    model.graph.output.extend(outputs)
    model.opset_import.append(helper.make_opsetid("TRT", 1))
    onnx.save(model, tmp_path / "nms.onnx")

    # Without metadata nothing says which exporter it was, so a build would ask.
    family = VARIANTS["family"]
    build(BuildPlan(tmp_path / "nms.onnx", "m", tmp_path / "r", backend, preprocess=family))
    [rows] = run(prepared(shared, "yolov8n").graph, bus(shared, "yolov8n"))
    corners, best, classes = plainly(rows[0, :4].T, rows[0, 4:].T, coding=1)
    with Engine.open(tmp_path / "r" / "m" / "1") as engine:
        assert [spec.name for spec in engine.card.outputs] == list(NAMES)
        found = engine.outputs_of(read_image(shared / "data" / "bus.jpg"))
    number = found["num_dets"].item()
    assert number == len(best) >= 4
    np.testing.assert_allclose(found["det_boxes"][0, :number], corners, atol=0.05)
    np.testing.assert_allclose(found["det_scores"][0, :number], best, atol=1e-4)
    np.testing.assert_array_equal(found["det_classes"][0, :number], classes)
