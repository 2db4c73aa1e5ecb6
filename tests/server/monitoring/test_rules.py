"""Rules that choose images by results."""

import numpy as np
import pytest

from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import InvalidOption
from fovea_server.models.config.capture_rules import parse_rule

WORDS = Vocabulary(("person", "dog"))


def objects(*scores, classes=None):
    ids = np.zeros(len(scores)) if classes is None else classes
    boxes = np.zeros((len(scores), 4), np.float32)
    return Detections(boxes, np.float32(scores), np.int32(ids))


def classes(*scores):
    return Classes(np.arange(len(scores), dtype=np.int32), np.float32(scores))


@pytest.mark.parametrize(
    ("rule", "found", "taken"),
    [
        ("score 0.3..0.5", objects(0.9, 0.4), True),
        ("score 0.3..0.5", objects(0.9, 0.6), False),
        ("score 0.3..0.5", objects(), False),
        ("score 0.3..0.5", classes(0.4, 0.1), True),
        ("score 0.3..0.5", classes(0.6, 0.4), False),
        ("classes dog,cat", objects(0.9, 0.8, classes=[0, 1]), True),
        ("classes cat", objects(0.9, classes=[1]), False),
        ("classes dog", classes(0.9, 0.1), False),
        ("classes person", classes(0.9, 0.1), True),
        ("empty", objects(), True),
        ("empty", objects(0.3), False),
        ("empty", classes(0.3), False),
        ("rate 100%", objects(), True),
        ("rate 1", classes(0.5), True),
    ],
)
def test_a_rule_takes(rule, found, taken):
    assert parse_rule(rule).takes(found, WORDS) is taken


def test_a_rate_is_a_share():
    takes = parse_rule("rate 20%").takes
    assert 300 < sum(takes(objects(), WORDS) for _ in range(2000)) < 500


def test_unlike_takes_what_is_new():
    takes = parse_rule("unlike").takes
    assert takes(objects(0.95, 0.91), WORDS)
    assert not takes(objects(0.95, 0.93), WORDS)
    assert takes(objects(0.31), WORDS)
    assert takes(objects(), WORDS)
    assert not takes(objects(), WORDS)
    assert not takes(classes(0.9), WORDS)
    assert not takes(classes(0.9), WORDS)
    along, across = Embedding(np.float32([2, 0.1])), Embedding(np.float32([0, 3]))
    takes = parse_rule("unlike 0.5").takes
    assert [takes(each, WORDS) for each in (along, along, across)] == [True, False, True]


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("scores 0.3..0.5", "did you mean 'score'"),
        ("score", "two scores"),
        ("score 0.5..0.3", "the lower one first"),
        ("score 0.3..1.5", "from 0 to 1"),
        ("score 1.2.3..2", "could not convert"),
        ("classes", "names of classes"),
        ("empty 3", "nothing follows"),
        ("rate 0%", "more than 0 %"),
        ("rate 120%", "at most 100 %"),
        ("rate often", "could not convert"),
        ("unlike 2", "at most 1"),
        ("", "rules are 'score"),
    ],
)
def test_a_bad_rule_says_how_rules_are_written(rule, says):
    with pytest.raises(InvalidOption, match=says):
        parse_rule(rule)
