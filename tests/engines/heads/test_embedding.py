"""Embeddings: told from classifiers, compared by their direction, and never with a NaN in them."""

import numpy as np
import pytest

from fovea_engines.evaluation.agreement.measure import measure
from fovea_engines.evaluation.reference import Sample
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel

IMAGE = [TensorSpec("images", "float32", (1, 3, 64, 32))]


def recognised(name, *shape, family=None, seen=None, **metadata):
    outputs = [TensorSpec(name, "float32", shape)]
    observe = None if seen is None else lambda _: [{name: np.array([seen], np.float32)}]
    return recognise(IMAGE, outputs, metadata, family, observe)


@pytest.mark.parametrize(
    ("name", "shape", "metadata"),
    [
        ("reid_embedding", (1, 256), {}),
        ("image_embeds", (-1, 512), {}),
        ("features", (1, 512, 1, 1), {}),
        ("output", (1, 128), {"task": "embed"}),
        ("output", (1, 1000), {"task": "feature-extraction"}),
    ],
)
def test_names_and_metadata_make_it_an_embedding(name, shape, metadata):
    found = recognised(name, *shape, **metadata)
    assert (found.family, found.task, found.outputs) == ("embedding", "embed", (name,))


@pytest.mark.parametrize(
    ("name", "metadata"),
    [("output", {"names": "['a', 'b', 'c']"}), ("features", {"names": "['a', 'b', 'c']"})],
)
def test_what_has_class_names_is_a_classifier(name, metadata):
    assert recognised(name, 1, 3, seen=[0.2, 0.3, 0.5], **metadata).task == "classify"


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("emb_bbox", 4), ("feature_classifier", 1000), ("landmark_features", 10)),
        *(("reid_class_prob", 751), ("embedding", 4)),
    ],
)
def test_a_part_of_a_name_or_a_few_numbers_are_no_embedding(name, size):
    seen = np.random.default_rng(0).normal(size=size)
    assert recognised(name, 1, size, seen=seen).family != "embedding"


def test_a_softmax_is_no_embedding_whatever_its_name():
    seen = np.full(32, 1 / 32)
    assert recognised("embedding", 1, 32, seen=seen).family != "embedding"
    with pytest.raises(UnsupportedModel, match="add up to 1"):
        recognised("embedding", 1, 32, seen=seen, family="embedding")


def test_probabilities_are_a_classifier():
    assert recognised("output", 1, 4, seen=[0.1, 0.2, 0.3, 0.4]).task == "classify"


def test_numbers_that_nothing_names_are_asked_for():
    found = recognised("output", 1, 4, seen=[-3.0, 2.0, 0.5, 1.0])
    assert found.family is None
    assert "--head embedding" in found.reason
    assert "--head classifier-logits" in found.reason
    named = recognised("output", 1, 4, seen=[-3.0, 2.0, 0.5, 1.0], family="embedding")
    assert named.task == "embed"


def test_a_second_output_is_left_out():
    outputs = [
        TensorSpec("last_hidden_state", "float32", (1, 50, 64)),
        TensorSpec("pooler_output", "float32", (1, 64)),
    ]
    assert recognise(IMAGE, outputs, {}).outputs == ("pooler_output",)


@pytest.fixture
def head():
    return open_head(recognised("embedding", 1, 3, family="embedding"), IMAGE)


def test_it_is_decoded_and_normalised(head):
    outputs = {"embedding": np.array([[0, 0, 0], [3, 0, -4]], np.float16)}
    found = head.decode(outputs, 1, PredictOptions())
    assert found.norm == 5
    np.testing.assert_allclose(found.unit, [0.6, 0, -0.8], atol=1e-6)
    assert head.decode(outputs, 0, PredictOptions()).unit.tolist() == [0, 0, 0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_none_is_enough(head, wrong):
    outputs = {"embedding": np.array([[1, 2, 3], [1, wrong, 3]], np.float32)}
    assert head.unsound(outputs, 0) is None
    assert head.unsound(outputs, 1) == "output embedding"


def test_classes_are_no_embedding():
    with pytest.raises(UnsupportedModel, match="name 3 classes"):
        recognised("output", 1, 3, family="embedding", names="['a', 'b', 'c']")


@pytest.mark.parametrize(
    ("have", "quality"),
    [
        ([2.0, 0.0], 1.0),  # as long as it likes
        ([1.0, 1.0], 0.5),
        ([0.0, 1.0], 0.0),
        ([-1.0, 0.0], 0.0),
        ([0.951, 0.309], 0.8),  # the least of INT8
        ([np.nan, 0.0], 0.0),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_agreement_is_of_directions(have, quality):
    head = open_head(recognised("embedding", 1, 2, family="embedding"), IMAGE)
    want = {"embedding": np.array([[1.0, 0.0]], np.float32)}
    found = measure(
        head, [(Sample("a.jpg", want["embedding"], want), {"embedding": np.array([have])})]
    )
    assert found.shared == pytest.approx(quality, abs=1e-3)
    assert found.quality == pytest.approx(quality, abs=1e-3)
    assert found.text("int8").startswith("directions of vectors agree")
    assert Embedding(want["embedding"][0]).shared(Embedding(want["embedding"][0])) == 1
