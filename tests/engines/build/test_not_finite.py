"""What is no number agrees with nothing: neither a source, nor an engine, nor a head."""

import json

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.engines.build.test_recognised_at_build import Notes
from tests.engines.fragile import broken, fragile_classifier, fragile_detector, fragile_map
from tests.engines.tiny import constant, save, tiny_detector, tiny_network

from fovea_engines.backends.registry import CPU_BACKENDS
from fovea_engines.build import acceptance, choose
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


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("task", FRAGILE)
def test_a_source_that_is_not_finite_on_one_image_is_refused(tmp_path, images, task, backend):
    source = FRAGILE[task](tmp_path / "m.onnx")
    with pytest.raises(UnsupportedModel, match=r"on b\.png output out\w* of the source"):
        build(plan(source, tmp_path, backend, images=images))
    assert not (tmp_path / "r" / "m" / "1").exists()


@pytest.mark.parametrize("task", FRAGILE)
def test_another_runtime_is_the_reference_where_one_is_not_finite(tmp_path, images, task):
    source = FRAGILE[task](tmp_path / "m.onnx", runtime="onnxruntime")
    # Black is then zero.
    options = {"images": images, "preprocess": {"mean": (0, 0, 0), "std": (1, 1, 1)}}
    with pytest.raises(Disagreement, match=r"on b\.png output out\w* is NaN .* OpenVINO's"):
        build(plan(source, tmp_path, "onnxruntime", **options))
    assert not (tmp_path / "r" / "m" / "1").exists()
    notes = Notes()
    card = build(plan(source, tmp_path, "openvino", **options), notes)
    assert card.agreement.replaced == 1
    assert "the reference is OpenVINO on 1 of 3 images" in card.agreement.text("fp32")
    assert any(note.startswith("the reference is OpenVINO on 1 of 3") for note in notes.notes)


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
    with pytest.raises(Disagreement, match="reid_embedding is NaN"):
        build(plan(source, tmp_path, "onnxruntime"))


@pytest.mark.parametrize("family", [None, "classifier", "classifier-logits"])
def test_no_head_is_recognised_from_nan(tmp_path, images, family):
    for name in ("a", "c"):
        (images / f"{name}.png").unlink()
    source = fragile_classifier(tmp_path / "m.onnx")
    model = onnx.load(source)
    helper.set_model_props(model, {})
    onnx.save(model, source)
    says = "every sample image" if family else "of the source model itself"
    with pytest.raises(UnsupportedModel, match=says):
        build(plan(source, tmp_path, images=images, family=family))


def test_only_what_a_head_decodes_must_be_finite(tmp_path, images):
    """Nobody reads the second output where the head is known; of tensors all must be numbers."""
    source = with_more(tiny_detector(tmp_path / "m.onnx", batch=1))
    broken(source, source, outputs=["more"])
    with pytest.raises(UnsupportedModel, match=r"on b\.png output more of the source"):
        build(plan(source, tmp_path, images=images, family="tensors"))
    aside = tf_like(tmp_path / "aside.onnx")
    broken(aside, aside, outputs=["raw_detection_scores"])
    build(plan(aside, tmp_path, images=images, preprocess={}))
    broken(aside, aside, outputs=["detection_scores"])
    with pytest.raises(UnsupportedModel, match=r"on b\.png detection_scores of the source"):
        build(plan(aside, tmp_path, images=images, preprocess={}))


def tf_like(path):
    """Eight outputs of TensorFlow's API, of which a head reads four."""
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


def with_more(path):
    model = onnx.load(path)
    model.graph.node.append(helper.make_node("Identity", ["c32"], ["more"]))
    model.graph.output.append(
        helper.make_tensor_value_info("more", TensorProto.FLOAT, [1, 7, 2, 2])
    )
    onnx.save(model, path)
    return path


def test_ranges_of_int8_are_not_measured_on_nan(tmp_path, images):
    source = tiny_network(tmp_path / "m.onnx")
    model = onnx.load(source)
    model.graph.node[0].input[0] = "in/log"
    model.graph.node.insert(0, helper.make_node("Log", ["images"], ["in/log"]))
    onnx.save(model, source)
    with pytest.raises(BuildError, match="finite"):
        build(plan(source, tmp_path, precision="int8", calibration=images))


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("task", FRAGILE)
def test_an_answer_that_is_not_finite_is_an_error(tmp_path, images, task, backend):
    source = FRAGILE[task](tmp_path / "m.onnx")
    (images / "b.png").unlink()
    build(plan(source, tmp_path, backend, images=images))
    with Engine.open(tmp_path / "r" / "m" / "1") as engine:
        assert engine.card.task == task
        engine.predict(np.full_like(BLACK, 200))
        with pytest.raises(NotFinite, match="of m is NaN or infinite") as caught:
            engine.predict(BLACK)
        assert caught.value.code == "not_finite"
        assert np.isnan(engine.outputs_of(BLACK)[engine.card.outputs[0].name]).any()


def test_cards_without_the_count_are_read(tmp_path, images):
    source = fragile_classifier(tmp_path / "m.onnx", runtime="onnxruntime")
    build(plan(source, tmp_path, "openvino", images=images))
    file = tmp_path / "r" / "m" / "1" / "card.json"
    card = json.loads(file.read_text())
    assert card["agreement"].pop("replaced") == 1
    file.write_text(json.dumps(card))
    with Engine.open(file.parent) as engine:
        assert engine.card.agreement.replaced == 0


def test_accuracy_of_what_is_not_finite(tmp_path, images):
    """A candidate of the search has none, a graph to compare with is left out, and others fail."""
    for label, name in (("dark", "b"), ("bright", "a")):
        (tmp_path / "data" / label).mkdir(parents=True)
        (images / f"{name}.png").rename(tmp_path / "data" / label / f"{name}.png")
    source = fragile_classifier(tmp_path / "m.onnx")
    one = plan(source, tmp_path, images=images)
    prepared, notes = prepare(one, Notes()), Notes()
    labelled = read_labelled(tmp_path / "data", None).match_classes(prepared.labels, 2)
    truth = LabelledEvaluation(one, prepared, labelled, notes)
    with reference(one, prepared, prepared.graph, "fp32") as engine:
        assert truth.measure_figure(engine) == 0
        with pytest.raises(NotFinite):
            truth.measure_engine("int8", engine)
    assert acceptance._measure_graphs(truth, {"fp16": prepared.graph}, notes) == {}
    assert notes.notes[-1].startswith("fp16 cannot be measured beside it: output output0 of m is")
    with pytest.raises(NotFinite):
        acceptance._measure_graphs(truth, {"int8 for TensorRT": prepared.graph}, notes)
