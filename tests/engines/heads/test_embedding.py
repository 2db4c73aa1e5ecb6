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
NAMES = {"names": "['a', 'b', 'c']"}
NUMBERS = np.random.default_rng(0).normal(size=1000)


def recognised(name, *shape, family=None, seen=None, **metadata):
    outputs = [TensorSpec(name, "float32", shape)]
    observe = None if seen is None else lambda _: [{name: np.array([seen], np.float32)}]
    return recognise(IMAGE, outputs, metadata, family, observe)


@pytest.mark.parametrize(
    ("name", "shape", "metadata", "seen", "task"),
    [
        ("reid_embedding", (1, 256), {}, None, "embed"),
        ("image_embeds", (-1, 512), {}, None, "embed"),
        ("features", (1, 512, 1, 1), {}, None, "embed"),
        ("output", (1, 128), {"task": "embed"}, None, "embed"),
        ("output", (1, 1000), {"task": "feature-extraction"}, None, "embed"),
        # Class names and probabilities make a classifier, whatever its name.
        ("output", (1, 3), NAMES, [0.2, 0.3, 0.5], "classify"),
        ("features", (1, 3), NAMES, [0.2, 0.3, 0.5], "classify"),
        ("output", (1, 4), {}, [0.1, 0.2, 0.3, 0.4], "classify"),
        ("embedding", (1, 32), {}, np.full(32, 1 / 32), "classify"),
    ],
)
def test_names_metadata_and_numbers_tell_embeddings_from_classes(name, shape, metadata, seen, task):
    found = recognised(name, *shape, seen=seen, **metadata)
    assert (found.task, found.outputs) == (task, (name,))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("emb_bbox", 4), ("feature_classifier", 1000), ("landmark_features", 10)),
        *(("reid_class_prob", 751), ("embedding", 4)),
    ],
)
def test_a_part_of_a_name_or_a_few_numbers_are_no_embedding(name, size):
    assert recognised(name, 1, size, seen=NUMBERS[:size]).family != "embedding"


def test_what_is_no_embedding_is_refused_and_what_may_be_one_is_asked_for():
    for metadata, seen in (({}, np.full(32, 1 / 32)), (NAMES, NUMBERS[:3])):
        with pytest.raises(UnsupportedModel):
            recognised("embedding", 1, len(seen), seen=seen, family="embedding", **metadata)
    seen = [-3.0, 2.0, 0.5, 1.0]
    found = recognised("output", 1, 4, seen=seen)
    assert found.family is None
    assert "--head embedding" in found.reason
    assert "--head classifier-logits" in found.reason
    assert recognised("output", 1, 4, seen=seen, family="embedding").task == "embed"
    states = TensorSpec("last_hidden_state", "float32", (1, 50, 64))
    pooled = TensorSpec("pooler_output", "float32", (1, 64))
    assert recognise(IMAGE, [states, pooled], {}).outputs == ("pooler_output",)


def test_it_is_decoded_and_normalised():
    head = open_head(recognised("embedding", 1, 3, family="embedding"), IMAGE)
    outputs = {"embedding": np.array([[0, 0, 0], [3, 0, -4]], np.float16)}
    found = head.decode(outputs, 1, PredictOptions())
    assert found.norm == 5
    np.testing.assert_allclose(found.unit, [0.6, 0, -0.8], atol=1e-6)
    assert head.decode(outputs, 0, PredictOptions()).unit.tolist() == [0, 0, 0]
    for wrong in (np.nan, np.inf, -np.inf):
        outputs["embedding"][1, 1] = wrong
        assert head.unsound(outputs, 0) is None
        assert head.unsound(outputs, 1) == "output embedding"


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
    sample = Sample("a.jpg", want["embedding"], want)
    found = measure(head, [(sample, {"embedding": np.array([have])})])
    assert (found.shared, found.quality) == pytest.approx((quality, quality), abs=1e-3)
    assert Embedding(want["embedding"][0]).similarity(Embedding(want["embedding"][0])) == 1
