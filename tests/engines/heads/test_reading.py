"""Text by CTC: told by its dictionary, collapsed as CTC says, compared by edits."""

import numpy as np
import pytest

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


@pytest.mark.parametrize("columns", [4, 5])
def test_a_dictionary_tells_it(columns):
    found = recognised(steps(1, 0, 2, columns=columns), **SAYS)
    assert (found.family, found.task, found.num_classes) == ("ctc", "read", 3)


def test_logits_are_told_from_probabilities():
    assert recognised(10 * steps(1, 0, 2) - 5, **SAYS).family == "ctc-logits"


def test_without_a_dictionary_the_user_says_so():
    found = recognised(steps(1, 0, 2))
    assert found.family is None
    assert "--head ctc" in found.reason
    assert recognised(steps(1, 0, 2), family="ctc").num_classes == 4
    with pytest.raises(UnsupportedModel, match="name 2"):
        recognised(steps(1, 0, 2), family="ctc", character="a\nb")


@pytest.mark.parametrize(
    ("best", "text"),
    [
        ((0, 1, 1, 0, 1, 2, 0), "aab"),
        ((0, 0), ""),
        ((1, 2, 3), "abc"),
        ((1, 4, 1), "a a"),
        ((3, 3, 3), "c"),
    ],
)
def test_repeated_steps_are_one_character(best, text):
    seen = steps(*best)
    head = open_head(recognised(steps(1, 0, 2), **SAYS), IMAGE)
    found = head.decode({"out": seen}, 0, PredictOptions())
    assert "".join(found.characters(LABELS)) == text
    assert found.scores.tolist() == pytest.approx([0.9] * len(text))
    assert found.score == pytest.approx(0.9 if text else 0)


def test_labels_with_a_line_for_none_are_told_how_many_there_must_be():
    outputs = [TensorSpec("out", "float32", (1, 68, 18))]
    names = {"names": str([*map(str, range(68))])}
    with pytest.raises(UnsupportedModel, match="name 67, and they name 68"):
        recognise(IMAGE, outputs, names, "lprnet")


def test_the_columns_of_lprnet_are_its_rows_and_none_is_last():
    logits = 8 * steps(0, 0, 3, 0, 1, columns=4).swapaxes(1, 2)
    outputs = [TensorSpec("out", "float32", logits.shape)]
    found = recognise(IMAGE, outputs, {}, "lprnet", lambda _: [{"out": logits}])
    assert found.num_classes == 3
    text = open_head(found, IMAGE).decode({"out": logits}, 0, PredictOptions())
    assert text.characters(LABELS) == ["a", "a", "b"]


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "abc", 0), ("flaw", "lawn", 2)],
)
def test_edits(one, other, edits):
    assert edit_distance(one, other) == edit_distance(other, one) == edits


def test_agreement_is_of_texts():
    head = open_head(recognised(steps(1, 0, 2), **SAYS), IMAGE)

    def read(*best):
        return head.decode({"out": steps(*best)}, 0, PredictOptions())

    assert read(1, 0, 2, 3).shared(read(1, 0, 2, 3)) == 1
    assert read(1, 0, 2, 3).shared(read(1, 0, 3)) == pytest.approx(2 / 3)
    assert read(0).shared(read(0, 0)) == 1
    assert read(0).shared(read(1)) == 0
    assert head.unsound({"out": steps(1) * np.nan}, 0) == "output out"
