"""Several classifiers in one network: told by what they compute, compared by probabilities."""

import numpy as np
import pytest

from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

IMAGE = [TensorSpec("images", "float32", (1, 3, 64, 64))]
TYPE, COLOUR = [0.7, 0.2, 0.1], [0.4, 0.6]


def recognised(seen, family=None, **metadata):
    arrays = {name: np.array([row], np.float32) for name, row in seen.items()}
    outputs = [TensorSpec(name, "float32", array.shape) for name, array in arrays.items()]
    return recognise(IMAGE, outputs, metadata, family, lambda _: [arrays])


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
def test_the_numbers_tell_what_it_is(seen, metadata, family):
    assert recognised(seen, **metadata).family == family


def test_a_single_output_is_asked_for():
    assert "--head attributes-sigmoid" in recognised({"out": [0.9, 0.8, 0.1]}).reason


@pytest.fixture
def outputs():
    return {"type": np.array([TYPE], np.float32), "color": np.array([COLOUR], np.float32)}


@pytest.fixture
def head():
    return open_head(recognised({"type": TYPE, "color": COLOUR}), IMAGE)


def test_class_ids_count_through_all_classifiers(head, outputs):
    assert head.num_classes == 5
    kind, colour = head.decode(outputs, 0, PredictOptions()).found
    assert (kind.class_ids.tolist(), colour.class_ids.tolist()) == ([0, 1, 2], [4, 3])
    np.testing.assert_allclose(colour.scores, [0.6, 0.4])
    kind, colour = head.decode(outputs, 0, PredictOptions(top_k=1, classes=(1, 3))).found
    assert (kind.class_ids.tolist(), colour.class_ids.tolist()) == ([1], [3])


def test_pictures_list_the_best(head, outputs):
    found = head.decode(outputs, 0, PredictOptions())
    labels = ("car", "van", "truck", "red", "green")
    assert found.lines(labels) == [("type: car 0.70", 0), ("color: green 0.60", 4)]
    assert found.lines(None)[0][0] == "type: class 0 0.70"


def test_agreement_is_the_probability_that_stays(head, outputs):
    found = head.decode(outputs, 0, PredictOptions())
    other = {name: array.copy() for name, array in outputs.items()}
    other["color"][0] = [0.6, 0.4]
    assert found.shared(head.decode(other, 0, PredictOptions())) == pytest.approx(0.9)
    assert found.shared(found) == 1
    other["color"][0, 0] = np.nan
    assert head.unsound(other, 0) == "output color"
    assert found.shared(head.decode(other, 0, PredictOptions())) == 0


def test_logits_are_made_probabilities():
    seen = {"type": [800.0, 801.0], "color": [0.0, -1.0]}
    head = open_head(recognised(seen, family="attributes-logits"), IMAGE)
    arrays = {name: np.array([row], np.float32) for name, row in seen.items()}
    kind, colour = head.decode(arrays, 0, PredictOptions()).found
    np.testing.assert_allclose(kind.scores, [0.731, 0.269], atol=1e-3)
    np.testing.assert_allclose(colour.scores, [0.731, 0.269], atol=1e-3)
