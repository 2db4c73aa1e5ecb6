"""An engine computes what its source model does, or is refused; what is no number never agrees."""

import json

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.engines.fragile import broken, fragile_classifier, fragile_detector, fragile_map
from tests.engines.noting import Noting
from tests.engines.sabotage import scale_weight, swap_columns
from tests.engines.tiny import constant, save, tiny_detector, tiny_network

from fovea_engines.build import acceptance, choose
from fovea_engines.build.acceptance import check_agreement
from fovea_engines.build.assemble import reference
from fovea_engines.build.build import build
from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.build.plan import AUTO, BuildPlan, choices
from fovea_engines.build.prepare import prepare
from fovea_engines.engine import Engine
from fovea_engines.evaluation.labels import read_labelled
from fovea_preprocess.errors import BuildError, Disagreement, NotFinite, UnsupportedModel

pytestmark = pytest.mark.real

FRAGILE = {"detect": fragile_detector, "classify": fragile_classifier, "semantic": fragile_map}
BLACK = np.zeros((64, 64, 3), np.uint8)


@pytest.fixture
def images(tmp_path):
    """Two bright images, and a black one."""
    folder = tmp_path / "images"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name in ("a", "c"):
        cv2.imwrite(str(folder / f"{name}.png"), random.integers(99, 255, (64, 64, 3), np.uint8))
    cv2.imwrite(str(folder / "b.png"), BLACK)
    return folder


def plan(source, tmp_path, backend="onnxruntime", **options):
    return BuildPlan(source, "m", tmp_path / "r", backend, **options)


@pytest.mark.parametrize(
    ("name", "first_class"),
    [("yolov5n", 5), ("yolov8n", 4), ("yolox_nano", 5), ("yolov10n", None)],
)
def test_a_real_detector_agrees_and_disagrees_with_one_wrong_layer(
    shared, tmp_path, name, first_class
):
    source = shared / "models" / f"{name}.onnx"
    card = build(BuildPlan(source, name, tmp_path))
    assert card.agreement.detections >= 60
    assert card.agreement.box_px < 0.002
    assert card.agreement.score < 1e-4
    assert json.loads((tmp_path / name / "1" / "card.json").read_text())["name"] == name
    wrong = tmp_path / "wrong" / "1" / "model.onnx"
    wrong.parent.mkdir(parents=True)

    def check_refused(model, says):
        onnx.save(model, wrong)
        with Engine.open(wrong.parent) as engine, pytest.raises(Disagreement, match=says):
            check_agreement(engine, source)

    convs = sum(node.op_type == "Conv" for node in onnx.load(source).graph.node)
    for place in (0.1, 0.5):
        model = onnx.load(source)
        scale_weight(model, int(place * convs), 1.02)
        check_refused(model, r"on \w+\.jpg, the (.* finds class|best .* column)")
    if first_class is not None:
        # Bus and train: no image shows a train.
        model = onnx.load(source)
        swap_columns(model, first_class + 5, first_class + 6)
        check_refused(model, rf"column ({first_class + 5}|{first_class + 6}) of the raw output")


def test_a_real_classifier_agrees(shared, tmp_path):
    card = build(BuildPlan(shared / "models" / "mobilenetv2.onnx", "m", tmp_path))
    assert card.family == "classifier-logits"
    assert (card.agreement.same_top, card.agreement.same_order) == (1, 1)
    assert card.agreement.output_error < 1e-4
    assert card.agreement.score < 1e-4


@pytest.mark.slow
def test_an_engine_of_other_weights_disagrees(built_repository, tmp_path):
    other = tiny_detector(tmp_path / "other.onnx", seed=1)
    with (
        Engine.open(built_repository / "tiny" / "1") as engine,
        pytest.raises(Disagreement, match=r"astronaut\.jpg"),
    ):
        check_agreement(engine, other)


def test_outputs_of_integers_may_all_be_zero(tmp_path):
    nodes = [
        helper.make_node("Mul", ["images", "zero"], ["none"]),
        helper.make_node("Cast", ["none"], ["out"], to=TensorProto.INT32),
    ]
    shapes = [("images", [1, 3, 32, 32])], [("out", [1, 3, 32, 32])]
    model = onnx.load(save(tmp_path / "m.onnx", nodes, *shapes, [constant("zero", np.float32(0))]))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    onnx.save(model, tmp_path / "m.onnx")
    assert build(plan(tmp_path / "m.onnx", tmp_path, "openvino")).agreement.output_error == 0


@pytest.mark.parametrize(
    ("task", "backend"),
    [
        ("detect", "onnxruntime"),
        ("detect", "openvino"),
        ("classify", "openvino"),
        ("semantic", "onnxruntime"),
    ],
)
def test_what_is_not_finite_is_refused_by_a_build_and_by_an_engine(tmp_path, images, task, backend):
    source = FRAGILE[task](tmp_path / "m.onnx")
    with pytest.raises(UnsupportedModel, match=r"b\.png"):
        build(plan(source, tmp_path, backend, images=images))
    assert not (tmp_path / "r" / "m" / "1").exists()
    (images / "b.png").unlink()
    build(plan(source, tmp_path, backend, images=images))
    with Engine.open(tmp_path / "r" / "m" / "1") as engine:
        assert engine.card.task == task
        engine.predict(np.full_like(BLACK, 200))
        with pytest.raises(NotFinite) as caught:
            engine.predict(BLACK)
        assert caught.value.code == "not_finite"
        assert np.isnan(engine.outputs_of(BLACK)[engine.card.outputs[0].name]).any()


@pytest.mark.parametrize("task", FRAGILE)
def test_another_runtime_is_the_reference_where_one_is_not_finite(tmp_path, images, task):
    source = FRAGILE[task](tmp_path / "m.onnx", runtime="onnxruntime")
    # Black is then zero.
    options = {"images": images, "preprocess": {"mean": (0, 0, 0), "std": (1, 1, 1)}}
    with pytest.raises(Disagreement, match=r"b\.png"):
        build(plan(source, tmp_path, "onnxruntime", **options))
    assert not (tmp_path / "r" / "m" / "1").exists()
    notes = Noting()
    card = build(plan(source, tmp_path, "openvino", **options), notes)
    assert card.agreement.replaced == 1
    assert "OpenVINO is the reference on 1 of 3 images" in card.agreement.text("fp32")
    assert any(note.startswith("OpenVINO is the reference on 1 of 3") for note in notes.notes)
    # Cards of before have no such count.
    file = tmp_path / "r" / "m" / "1" / "card.json"
    older = json.loads(file.read_text())
    assert older["agreement"].pop("replaced") == 1
    file.write_text(json.dumps(older))
    with Engine.open(file.parent) as engine:
        assert engine.card.agreement.replaced == 0


def test_auto_keeps_the_runtime_that_is_right(tmp_path, images, monkeypatch):
    source = fragile_detector(tmp_path / "m.onnx", runtime="onnxruntime")
    chosen = sorted(choices(AUTO, "fp32"), key=lambda one: one[0] != "onnxruntime")
    # A candidate that is slower than a right one is not looked at.
    monkeypatch.setattr(choose, "fastest", lambda *rates: 0)
    card = build(plan(source, tmp_path, chosen[0][0], images=images, choices=chosen))
    assert card.backend == "openvino"
    [other] = [one for one in card.candidates if one.backend == "onnxruntime"]
    assert "NaN or infinite" in other.problem


def test_real_re_identification_is_no_classifier_of_nan(shared, tmp_path):
    """ONNX Runtime computes nothing but NaN, and OpenVINO is right."""
    source = shared / "models" / "chains" / "person-reidentification-retail-0267.onnx"
    card = build(plan(source, tmp_path, "openvino"))
    assert card.family == "embedding"
    assert card.agreement.replaced == card.agreement.images == 3
    with pytest.raises(Disagreement, match="reid_embedding"):
        build(plan(source, tmp_path, "onnxruntime"))


@pytest.mark.parametrize("family", [None, "classifier", "classifier-logits"])
def test_no_head_is_recognised_from_nan(tmp_path, images, family):
    for name in ("a", "c"):
        (images / f"{name}.png").unlink()
    source = fragile_classifier(tmp_path / "m.onnx")
    model = onnx.load(source)
    helper.set_model_props(model, {})
    onnx.save(model, source)
    says = "every sample image" if family else "the source model returns NaN"
    with pytest.raises(UnsupportedModel, match=says):
        build(plan(source, tmp_path, images=images, family=family))


def tf_like(path):
    """Write five outputs of TensorFlow's API, of which a head reads four."""
    rows = np.array([[0.1, 0.2, 0.5, 0.6], [0.3, 0.3, 0.9, 0.8], [0, 0, 0, 0]], np.float32)
    values = {
        "detection_boxes": rows[None],
        "detection_scores": np.array([[0.9, 0.5, 0]], np.float32),
        "detection_classes": np.array([[1, 2, 1]], np.float32),
        "num_detections": np.array([2], np.float32),
        "raw_detection_scores": np.ones((1, 3, 2), np.float32),
    }
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        *(helper.make_node("Add", ["nothing", f"{n}/value"], [n]) for n in values),
    ]
    weights = [constant(f"{name}/value", value) for name, value in values.items()]
    weights.append(constant("zero", np.float32(1e-20)))
    shapes = [(name, list(value.shape)) for name, value in values.items()]
    return save(path, nodes, [("images", [1, 3, 64, 64])], shapes, weights)


def test_only_what_a_head_decodes_must_be_finite(tmp_path, images):
    """Nobody reads the last output where the head is known; of tensors all must be numbers."""
    source = tf_like(tmp_path / "m.onnx")
    broken(source, source, outputs=["raw_detection_scores"])
    build(plan(source, tmp_path, images=images, preprocess={}))
    with pytest.raises(UnsupportedModel, match=r"b\.png"):
        build(plan(source, tmp_path, images=images, family="tensors"))
    broken(source, source, outputs=["detection_scores"])
    with pytest.raises(UnsupportedModel, match=r"b\.png"):
        build(plan(source, tmp_path, images=images, preprocess={}))


def test_ranges_of_int8_are_not_measured_on_nan(tmp_path, images):
    model = onnx.load(tiny_network(tmp_path / "m.onnx"))
    model.graph.node[0].input[0] = "in/log"
    model.graph.node.insert(0, helper.make_node("Log", ["images"], ["in/log"]))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(BuildError):
        build(plan(tmp_path / "m.onnx", tmp_path, precision="int8", calibration=images))


def test_accuracy_of_what_is_not_finite(tmp_path, images):
    """A candidate of the search has none, a graph to compare with is left out, and others fail."""
    for label, name in (("dark", "b"), ("bright", "a")):
        (tmp_path / "data" / label).mkdir(parents=True)
        (images / f"{name}.png").rename(tmp_path / "data" / label / f"{name}.png")
    source = fragile_classifier(tmp_path / "m.onnx")
    one = plan(source, tmp_path, images=images)
    prepared, notes = prepare(one, Noting()), Noting()
    labelled = read_labelled(tmp_path / "data", None).match_classes(prepared.labels, 2)
    truth = LabelledEvaluation(one, prepared, labelled, notes)
    with reference(one, prepared, prepared.graph, "fp32") as engine:
        assert truth.measure_figure(engine) == 0
        with pytest.raises(NotFinite):
            truth.measure_engine("int8", engine)
    assert acceptance._measure_graphs(truth, {"fp16": prepared.graph}, notes) == {}
    assert notes.notes[-1].startswith("fp16 is not measured for comparison: output output0 of m is")
    with pytest.raises(NotFinite):
        acceptance._measure_graphs(truth, {"int8 for TensorRT": prepared.graph}, notes)
