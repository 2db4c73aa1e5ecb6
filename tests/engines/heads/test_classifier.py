"""Classifiers: the classes and scores of their own programs, and what is no classifier."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image
from tests.engines.heads.expected import File

from fovea_engines.evaluation.observe import Observer
from fovea_engines.heads.classifier import ClassifierLogits
from fovea_engines.heads.presets import PRESETS, default_preprocess
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.onnx_graph.normalise import normalise, open_size
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.results.classes import best_classes
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption, UnsupportedModel
from fovea_preprocess.letterbox import fit
from fovea_preprocess.spec import PreprocessSpec

pytestmark = pytest.mark.real

CLASSES = PredictOptions(top_k=3)


def assert_expected(file, told, first=5, score=1e-3):
    """The `first` classes of the family's own program, in its order, scores within `score`."""
    head, spec = open_head(told, file.inputs), file.spec(told.family)
    for pixels, rows in file.images.values():
        found = head.decode(file.run(pixels, spec)[0], 0, PredictOptions(top_k=first))
        assert found.class_ids.tolist() == [row["class_id"] for row in rows[:first]]
        assert found.scores == pytest.approx([row["score"] for row in rows[:first]], abs=score)


def rounded(pixels, spec):
    """The input of an image whose longer side is rounded, where torchvision cuts it off."""
    height, width = pixels.shape[:2]
    ratio = round(spec.height * spec.crop_ratio) / min(height, width)
    image = Image.fromarray(pixels).resize(
        (round(width * ratio), round(height * ratio)), Image.Resampling.BILINEAR
    )
    left, top = (round((side - spec.height) / 2) for side in image.size)
    middle = np.asarray(image)[top : top + spec.height, left : left + spec.width] * spec.scale
    return ((middle - spec.mean) / spec.std).transpose(2, 0, 1)[None].astype(np.float32)


def test_mobilenet_of_logits(shared):
    file = File(shared, "mobilenetv2")
    told = file.recognise()
    assert (told.family, told.task, told.num_classes) == ("classifier-logits", "classify", 1000)
    assert file.spec(told.family).crop_ratio == pytest.approx(1 / 0.875)
    assert_expected(file, told, first=3, score=1e-2)
    head, spec = open_head(told, file.inputs), file.spec(told.family)
    for pixels, rows in file.images.values():
        [logits] = file.session.run(None, {"input": rounded(pixels, spec)})
        found = head.decode({"output": logits}, 0, PredictOptions())
        assert found.class_ids.tolist() == [row["class_id"] for row in rows]
        assert found.scores == pytest.approx([row["score"] for row in rows], abs=1e-3)


def test_yolo_by_its_metadata(shared):
    file = File(shared, "yolo11-cls")
    told = file.recognise()
    assert told.family == "yolo-classifier"
    assert_expected(file, told)


def test_yolo_without_metadata_is_a_classifier_whose_preprocessing_is_a_guess(shared):
    file = File(shared, "yolo11-cls")
    told = file.recognise(metadata=False)
    assert told.family == "classifier"
    assert "a guess" in told.preprocess_from
    named = file.recognise("yolo-classifier", metadata=False)
    assert_expected(file, named)


def test_orientation_of_paddle(shared):
    file = File(shared, "pplcnet-orientation")
    told = file.recognise()
    assert told.family == "classifier"
    assert_expected(file, told)


def _model(layers, outputs, metadata=()):
    """A model of [1, 3, 8, 8] whose last output is made by `layers` of the means of its image."""
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])
    weight = np.random.default_rng(1).normal(0, 9, (3, outputs)).astype(np.float32)
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["logits"]),
    ]
    last = "logits"
    for layer in layers:
        nodes.append(helper.make_node(layer, [last], [layer.lower()]))
        last = layer.lower()
    graph = helper.make_graph(
        nodes,
        "classifier",
        [image],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, outputs])],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    for key, value in dict(metadata).items():
        model.metadata_props.add(key=key, value=value)
    return model


def told(model, family=None):
    parts = graph_inputs(model), graph_outputs(model), metadata_of(model)
    return recognise(*parts, family, Observer(model))


def test_probabilities_are_told_from_logits_by_their_numbers():
    assert told(_model(["Softmax"], 7)).family == "classifier"
    names = {"names": json.dumps(list("abcdefg"))}
    assert told(_model([], 7, names)).family == "classifier-logits"
    assert told(_model([], 1000)).family == "classifier-logits"
    with pytest.raises(UnsupportedModel, match="no logits"):
        told(_model(["Softmax"], 7), "classifier-logits")


def test_a_sigmoid_for_each_class_is_no_classifier():
    model = _model(["Sigmoid"], 7, {"names": json.dumps(list("abcdefg"))})
    assert told(model).family == "attributes-sigmoid"
    with pytest.raises(UnsupportedModel, match="add up to"):
        told(model, "classifier")


def test_numbers_without_names_may_be_features_until_the_user_says_otherwise():
    model = _model([], 128)
    found = told(model)
    assert found.family is None
    assert "may be features" in found.reason
    assert "--head classifier-logits" in found.reason
    assert told(model, "classifier-logits").num_classes == 128


def test_a_model_whose_numbers_are_not_seen_is_asked_about():
    model = _model([], 1000)
    parts = graph_inputs(model), graph_outputs(model), metadata_of(model)
    assert recognise(*parts).open == ("classifier", "classifier-logits")


@pytest.mark.parametrize(("metadata", "side"), [({}, 224), ({"imgsz": "[160, 160]"}, 160)])
def test_one_of_any_size_is_built_for_the_usual_one(metadata, side):
    model = _model(["Softmax"], 1000, metadata)
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_param = "side"
    assert open_size(model) == f"{side}x{side}"
    assert graph_inputs(normalise(model))[0].shape == (1, 3, side, side)


def test_one_number_is_no_choice():
    assert told(_model(["Sigmoid"], 1)).family is None


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 1, 1)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_logits_become_the_softmax(shape, dtype):
    logits = np.array([[1, 3, 2, -1], [0, 0, 5, 5]], dtype).reshape(shape)
    found = ClassifierLogits(("scores",)).decode({"scores": logits}, 0, CLASSES)
    powers = np.exp([1.0, 3, 2, -1])
    assert found.class_ids.tolist() == [1, 2, 0]
    assert found.class_ids.dtype == np.int32
    assert found.scores == pytest.approx((powers / powers.sum())[[1, 2, 0]], rel=1e-3)
    twins = ClassifierLogits(("scores",)).decode({"scores": logits}, 1, CLASSES)
    assert twins.class_ids.tolist() == [2, 3, 0]


def test_logits_of_any_size_give_probabilities():
    logits = np.array([[1e30, -1e30, np.nan, np.inf]], np.float32)
    found = ClassifierLogits(("scores",)).decode({"scores": logits}, 0, CLASSES)
    assert found.class_ids.tolist() == [0, 1]
    assert found.scores.tolist() == [1, 0]
    nothing = np.full((1, 4), np.nan, np.float32)
    assert len(ClassifierLogits(("scores",)).decode({"scores": nothing}, 0, CLASSES)) == 0


def test_only_top_k_and_classes_limit_what_is_answered():
    probabilities = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    assert best_classes(probabilities, PredictOptions(conf=0.9)).class_ids.tolist() == [3, 2, 1, 0]
    assert best_classes(probabilities, PredictOptions(top_k=1)).class_ids.tolist() == [3]
    chosen = best_classes(probabilities, PredictOptions(classes=(0, 2)))
    assert chosen.class_ids.tolist() == [2, 0]
    for wrong in (0, 1001):
        with pytest.raises(InvalidOption, match="top_k"):
            PredictOptions(top_k=wrong)


def test_classes_are_of_the_whole_image_whatever_its_size():
    found = best_classes(np.array([0.1, 0.9], np.float32), CLASSES)
    assert found.to_source(fit(PreprocessSpec(224, 224, fit="center-crop"), 640, 480)) is found
    assert found.summary == "2 classes"


def test_the_preset_is_the_classifiers_own(shared):
    file = File(shared, "mobilenetv2")
    assert file.spec(None, PRESETS["imagenet"]) == default_preprocess("classifier", file.inputs, {})
