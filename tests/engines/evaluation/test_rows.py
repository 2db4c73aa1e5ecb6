"""Rows that a top-k has ordered: compared in any order, and nothing else is."""

import numpy as np
import pytest

from fovea_engines.evaluation.agreement.identity import IdentityCheck
from fovea_engines.evaluation.agreement.measure import measure
from fovea_engines.evaluation.agreement.rows import align
from fovea_engines.evaluation.reference import Sample
from fovea_preprocess.errors import Disagreement

COUNT = 40
RANKED = frozenset({"boxes", "scores", "labels"})


def answer(*, batch=True):
    random = np.random.default_rng(0)
    outputs = {
        "boxes": random.uniform(0, 320, (1, COUNT, 4)).astype(np.float32),
        "scores": np.sort(random.uniform(0, 1, (1, COUNT)).astype(np.float32))[:, ::-1],
        "labels": random.integers(0, 80, (1, COUNT)),
    }
    return outputs if batch else {name: array[0] for name, array in outputs.items()}


def reordered(outputs, order):
    axis = 1 if outputs["scores"].ndim == 2 else 0
    return {name: np.take(array, order, axis) for name, array in outputs.items()}


def check(want, have, ranked=RANKED):
    sample = Sample("bus.jpg", np.zeros((1, 3, 8, 8), np.float32), want, ranked)
    return measure(None, IdentityCheck(None).each([(sample, have)]))


@pytest.mark.parametrize("batch", [True, False])
def test_rows_of_all_outputs_move_together(batch):
    want = answer(batch=batch)
    have = reordered(want, np.random.default_rng(1).permutation(COUNT))
    for name, array in align(want, have, RANKED).items():
        np.testing.assert_array_equal(array, want[name])
    found = check(want, have)
    assert (found.output_error, found.quality) == (0, 1)
    with pytest.raises(Disagreement, match="raw output"):
        check(want, have, frozenset())


@pytest.mark.parametrize("name", ["boxes", "labels"])
def test_rows_that_were_mixed_disagree(name):
    want = answer()
    have = want | {name: reordered(want, np.arange(COUNT)[::-1])[name]}
    with pytest.raises(Disagreement, match="raw output"):
        check(want, have)


def test_swapped_columns_disagree():
    want = answer()
    with pytest.raises(Disagreement, match="raw output"):
        check(want, want | {"boxes": want["boxes"][..., [1, 0, 3, 2]]})


@pytest.mark.parametrize("lacks", ["engine", "source"])
def test_a_row_too_few_or_too_many_disagrees(lacks):
    whole = {"rows": np.concatenate([answer(batch=False)["boxes"], np.ones((COUNT, 2))], axis=1)}
    less = {"rows": np.delete(whole["rows"], 7, axis=0)}
    want, have = (whole, less) if lacks == "engine" else (less, whole)
    with pytest.raises(Disagreement, match=r"an output is \[\d+, 6\] where the source"):
        check(want, have, frozenset(want))


def test_a_row_too_few_lowers_the_quality_by_its_share():
    want = {"rows": np.concatenate([answer(batch=False)["boxes"], np.ones((COUNT, 2))], axis=1)}
    have = {"rows": np.delete(want["rows"], 7, axis=0)}
    sample = Sample("bus.jpg", np.zeros((1, 3, 8, 8), np.float32), want, frozenset(want))
    lost = np.linalg.norm(want["rows"][7]) / np.linalg.norm(want["rows"])
    assert measure(None, [(sample, have)]).quality == pytest.approx(1 - lost)


def test_no_row_at_all_is_no_error():
    none = {"rows": np.zeros((0, 6), np.float32)}
    assert check(none, none, frozenset(none)).output_error == 0


def test_the_scores_of_a_classifier_keep_their_order():
    want = {"scores": np.linspace(0, 1, 10, dtype=np.float32)[None]}
    with pytest.raises(Disagreement, match="raw output"):
        check(want, {"scores": want["scores"][:, ::-1]}, RANKED)


def test_a_few_pixels_may_be_of_another_class():
    want = {"map": np.random.default_rng(0).integers(0, 19, (1, 64, 64), np.uint8)}
    have = {"map": want["map"].copy()}
    have["map"].flat[:30] = 18 - have["map"].flat[:30]
    assert 0 < check(want, have).output_error < 0.01
    have["map"].flat[:90] = 40
    with pytest.raises(Disagreement, match="raw output"):
        check(want, have)


def test_probabilities_next_to_0_are_as_exact_as_the_others():
    want = {"scores": np.float32([[[1e-5], [2e-6]]])}
    check(want, {"scores": want["scores"] + np.finfo(np.float32).eps})
    with pytest.raises(Disagreement, match="raw output"):
        check(want, {"scores": want["scores"] + np.float32(1e-6)})
