"""Classifiers: of one choice, of several, and which numbers are neither."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fovea_engines.evaluation.observe import Observer
from fovea_engines.heads.classifier import ClassifierLogits
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.onnx_graph.normalise import normalise, open_size
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.results.classes import best_classes
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel
from fovea_preprocess.letterbox import fit
from fovea_preprocess.spec import PreprocessSpec

IMAGE = [TensorSpec("images", "float32", (1, 3, 64, 64))]
THREE = PredictOptions(top_k=3)
SEVEN = {"names": json.dumps(list("abcdefg"))}


def network(layers, count, metadata=None, side=8):
    """A model of [1, 3, 8, 8] whose last output is made by `layers` of the means of its image."""
    weight = np.random.default_rng(1).normal(0, 9, (3, count)).astype(np.float32)
    steps = [("GlobalAveragePool", "image"), ("Flatten", "GlobalAveragePool")]
    steps += [("MatMul", "Flatten"), *zip(layers, ["MatMul", *layers], strict=False)]
    nodes = [
        helper.make_node(kind, [taken, "weight"] if kind == "MatMul" else [taken], [kind])
        for kind, taken in steps
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "classifier", [value("image", TensorProto.FLOAT, [1, 3, side, side])],
        [value(steps[-1][0], TensorProto.FLOAT, [1, count])],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, metadata or {})
    return model


def told(model, family=None, observed=True):
    parts = graph_inputs(model), graph_outputs(model), metadata_of(model)
    return recognise(*parts, family, Observer(model) if observed else None)


@pytest.mark.parametrize(
    ("layers", "count", "metadata", "family"),
    [
        (["Softmax"], 7, {}, "classifier"),
        ([], 7, SEVEN, "classifier-logits"),
        ([], 1000, {}, "classifier-logits"),
        (["Sigmoid"], 7, SEVEN, "attributes-sigmoid"),
        (["Sigmoid"], 1, {}, None),
        ([], 128, {}, None),
    ],
)
def test_probabilities_logits_and_sigmoids_are_told_by_their_numbers(
    layers, count, metadata, family
):
    assert told(network(layers, count, metadata)).family == family


def test_numbers_may_be_features_and_need_a_name_or_to_be_seen():
    features = told(network([], 128))
    assert "may be features" in features.reason
    assert "--head classifier-logits" in features.reason
    assert told(network([], 128), "classifier-logits").num_classes == 128
    unseen = told(network([], 1000), observed=False)
    assert unseen.open == ("classifier", "classifier-logits")
    with pytest.raises(UnsupportedModel, match="not logits"):
        told(network(["Softmax"], 7), "classifier-logits")
    with pytest.raises(UnsupportedModel, match="add up to"):
        told(network(["Sigmoid"], 7, SEVEN), "classifier")


@pytest.mark.parametrize(("metadata", "side"), [({}, 224), ({"imgsz": "[160, 160]"}, 160)])
def test_one_of_any_size_is_built_for_the_usual_one(metadata, side):
    model = network(["Softmax"], 1000, metadata, side="side")
    assert open_size(model) == f"{side}x{side}"
    assert graph_inputs(normalise(model))[0].shape == (1, 3, side, side)


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 1, 1)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_logits_become_the_softmax(shape, dtype):
    logits = np.array([[1, 3, 2, -1], [0, 0, 5, 5]], dtype).reshape(shape)
    head = ClassifierLogits(("scores",))
    found = head.decode({"scores": logits}, 0, THREE)
    powers = np.exp([1.0, 3, 2, -1])
    assert found.class_ids.tolist() == [1, 2, 0]
    assert found.class_ids.dtype == np.int32
    assert found.scores == pytest.approx((powers / powers.sum())[[1, 2, 0]], rel=1e-3)
    twins = head.decode({"scores": logits}, 1, THREE)
    assert twins.class_ids.tolist() == [2, 3, 0]


def test_logits_of_any_size_give_probabilities():
    head = ClassifierLogits(("scores",))
    logits = np.array([[1e30, -1e30, np.nan, np.inf]], np.float32)
    found = head.decode({"scores": logits}, 0, THREE)
    assert (found.class_ids.tolist(), found.scores.tolist()) == ([0, 1], [1, 0])
    assert len(head.decode({"scores": logits * np.nan}, 0, THREE)) == 0


def test_only_top_k_and_classes_limit_what_is_answered():
    probabilities = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    for options, ids in (
        ({"conf": 0.9}, [3, 2, 1, 0]),
        ({"top_k": 1}, [3]),
        ({"classes": (0, 2)}, [2, 0]),
    ):
        assert best_classes(probabilities, PredictOptions(**options)).class_ids.tolist() == ids
    for wrong in (0, 1001):
        with pytest.raises(InvalidOption):
            PredictOptions(top_k=wrong)
    found = best_classes(probabilities, THREE)
    assert found.to_source(fit(PreprocessSpec(224, 224, fit="center-crop"), 640, 480)) is found
    assert found.summary == "3 classes"


TYPE, COLOUR = [0.7, 0.2, 0.1], [0.4, 0.6]


def of_several(seen, family=None, **metadata):
    """Recognise a network of several outputs, and return the head with what it was shown."""
    arrays = {name: np.array([row], np.float32) for name, row in seen.items()}
    outputs = [TensorSpec(name, "float32", array.shape) for name, array in arrays.items()]
    found = recognise(IMAGE, outputs, metadata, family, lambda _: [arrays])
    return found, open_head(found, IMAGE), arrays


@pytest.mark.parametrize(
    ("seen", "metadata", "family"),
    [
        ({"type": TYPE, "color": COLOUR}, {}, "attributes"),
        ({"type": [0.9, 0.8], "color": [0.3]}, {}, "attributes-sigmoid"),
        ({"type": [0.9, 0.8, 0.1]}, {"names": "['a', 'b', 'c']"}, "attributes-sigmoid"),
        ({"type": [0.9, 0.8, 0.1]}, {"task": "attributes"}, "attributes-sigmoid"),
        ({"type": [-3, 4.0], "color": [2.0, 1]}, {"task": "attributes"}, "attributes-logits"),
        ({"type": TYPE}, {"names": "['a', 'b', 'c']"}, "classifier"),
        ({"type": [-3, 4.0], "color": [2.0, 1]}, {}, None),
        ({"type": [0.9, 0.8, 0.1]}, {}, None),
    ],
)
def test_the_numbers_of_several_tell_what_they_are(seen, metadata, family):
    found, _, _ = of_several(seen, **metadata)
    assert found.family == family
    assert len(seen) > 1 or family or "--head attributes-sigmoid" in found.reason


def test_class_ids_count_through_all_classifiers():
    found, head, outputs = of_several({"type": TYPE, "color": COLOUR})
    assert found.num_classes == head.num_classes == 5
    both = head.decode(outputs, 0, PredictOptions())
    assert [each.class_ids.tolist() for each in both.found] == [[0, 1, 2], [4, 3]]
    np.testing.assert_allclose(both.found[1].scores, [0.6, 0.4])
    labels = ("car", "van", "truck", "red", "green")
    assert both.lines(labels) == [("type: car 0.70", 0), ("color: green 0.60", 4)]
    assert both.lines(None)[0][0] == "type: class 0 0.70"
    few = head.decode(outputs, 0, PredictOptions(top_k=1, classes=(1, 3)))
    assert [each.class_ids.tolist() for each in few.found] == [[1], [3]]


def test_agreement_is_the_probability_that_stays():
    _, head, outputs = of_several({"type": TYPE, "color": COLOUR})
    found = head.decode(outputs, 0, PredictOptions())
    for colour, shared in (([0.4, 0.6], 1), ([0.6, 0.4], 0.9), ([np.nan, 0.4], 0)):
        other = outputs | {"color": np.array([colour], np.float32)}
        assert found.similarity(head.decode(other, 0, PredictOptions())) == pytest.approx(shared)
    assert head.unsound(other, 0) == "output color"


def test_logits_of_several_are_made_probabilities():
    _, head, outputs = of_several({"type": [800.0, 801], "color": [0.0, -1]}, "attributes-logits")
    for found in head.decode(outputs, 0, PredictOptions()).found:
        np.testing.assert_allclose(found.scores, [0.731, 0.269], atol=1e-3)
