"""Text by CTC: told by its dictionary, collapsed as CTC says, compared by edits."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.reading import edit_distance
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel

IMAGE = [TensorSpec("x", "float32", (1, 3, 48, 320))]
LABELS = ("a", "b", "c")
SAYS = {"character": "a\nb\nc"}


def steps(*best, columns=5):
    """One-hot steps [1, steps, columns], a little unsure."""
    rows = np.full((1, len(best), columns), 0.1 / (columns - 1), np.float32)
    rows[0, range(len(best)), best] = 0.9
    return rows


def recognised(seen, family=None, **metadata):
    outputs = [TensorSpec("out", "float32", (1, -1, seen.shape[2]))]
    return recognise(IMAGE, outputs, metadata, family, lambda _: [{"out": seen}])


HEAD = open_head(recognised(steps(1, 0, 2), **SAYS), IMAGE)


def read(*best):
    return HEAD.decode({"out": steps(*best)}, 0, PredictOptions())


@pytest.mark.parametrize(
    ("seen", "family"),
    [
        (steps(1, 0, 2, columns=4), "ctc"),
        (steps(1, 0, 2), "ctc"),
        (10 * steps(1, 0, 2) - 5, "ctc-logits"),
    ],
)
def test_a_dictionary_tells_it(seen, family):
    found = recognised(seen, **SAYS)
    assert (found.family, found.task, found.num_classes) == (family, "read", 3)


def test_without_a_dictionary_the_user_says_so():
    found = recognised(steps(1, 0, 2))
    assert found.family is None
    assert "--head ctc" in found.reason
    assert recognised(steps(1, 0, 2), family="ctc").num_classes == 4
    with pytest.raises(UnsupportedModel, match="name 2"):
        recognised(steps(1, 0, 2), family="ctc", character="a\nb")


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_repeated_steps_are_one_character(best):
    """0 is none, and the last column, beyond the dictionary, is a space."""
    text = "".join(" abc "[step] for step, _ in groupby(best) if step)
    found = read(*best)
    assert "".join(found.characters(LABELS)) == text
    assert found.scores.tolist() == pytest.approx([0.9] * len(text))
    assert found.score == pytest.approx(0.9 if text else 0)


def test_the_columns_of_lprnet_are_its_rows_and_none_is_last():
    logits = 8 * steps(0, 0, 3, 0, 1, columns=4).swapaxes(1, 2)
    outputs = [TensorSpec("out", "float32", logits.shape)]
    found = recognise(IMAGE, outputs, {}, "lprnet", lambda _: [{"out": logits}])
    assert found.num_classes == 3
    text = open_head(found, IMAGE).decode({"out": logits}, 0, PredictOptions())
    assert text.characters(LABELS) == ["a", "a", "b"]
    # Labels that have a line for none.
    outputs = [TensorSpec("out", "float32", (1, 68, 18))]
    names = {"names": str([*map(str, range(68))])}
    with pytest.raises(UnsupportedModel, match="67"):
        recognise(IMAGE, outputs, names, "lprnet")


def plain_edits(one, other):
    """Levenshtein's distance by its definition."""
    if not one or not other:
        return len(one) + len(other)
    return min(
        plain_edits(one[1:], other) + 1,
        plain_edits(one, other[1:]) + 1,
        plain_edits(one[1:], other[1:]) + (one[0] != other[0]),
    )


@given(st.text("ab", max_size=5), st.text("abc", max_size=5))
def test_edits_are_those_of_the_definition(one, other):
    assert edit_distance(one, other) == plain_edits(one, other)


def test_agreement_is_of_texts():
    assert read(1, 0, 2, 3).similarity(read(1, 0, 2, 3)) == 1
    assert read(1, 0, 2, 3).similarity(read(1, 0, 3)) == pytest.approx(2 / 3)
    assert read(0).similarity(read(0, 0)) == 1
    assert read(0).similarity(read(1)) == 0
    assert HEAD.unsound({"out": steps(1) * np.nan}, 0) == "output out"
