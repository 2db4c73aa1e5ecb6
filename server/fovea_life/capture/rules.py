"""Rules that choose the images to keep by what a model found on them."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.classes import Classes
from fovea_engines.detect.detections import Detections
from fovea_engines.detect.embedding import Embedding
from fovea_engines.detect.task_result import TaskResult
from fovea_preprocess.errors import InvalidOption
from fovea_server.tensors.image_messages import Vocabulary

FORMS = (
    "'score 0.3..0.5' (an object has a score between), 'classes person,dog', 'empty' (nothing was "
    "found), 'rate 1%' (by chance), 'unlike' or 'unlike 0.4' (far from what was kept)"
)

Takes = Callable[[TaskResult, Vocabulary], bool]

_RANGE = re.compile(r"([0-9.]+)\.\.([0-9.]+)")
_UNLIKE = 0.3
_REMEMBERED = 512
_BINS = np.linspace(0, 1, 11)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it was written, and its decision on the result for an image."""

    text: str
    takes: Takes


def parse_rule(text: str) -> Rule:
    """Read a rule; InvalidOption says how rules are written."""
    word, _, rest = text.strip().partition(" ")
    try:
        return Rule(text.strip(), _RULES[word](rest.strip()))
    except KeyError:
        near = get_close_matches(word, _RULES, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise InvalidOption(f"{text!r} is no rule of a capture: {hint}rules are {FORMS}") from None
    except ValueError as error:
        raise InvalidOption(f"rule {text!r}: {error}; rules are {FORMS}") from None


def _score(given: str) -> Takes:
    found = _RANGE.fullmatch(given)
    if found is None:
        raise ValueError("it needs two scores, as 0.3..0.5")
    low, high = map(float, found.groups())
    if not 0 <= low < high <= 1:
        raise ValueError("scores go from 0 to 1, the lower one first")

    def takes(found: TaskResult, words: Vocabulary) -> bool:
        match found:
            case Detections(scores=scores):
                return bool(((scores >= low) & (scores <= high)).any())
            case Classes(scores=scores):
                # Of the first class: each other one has a low score for good reason.
                return bool((scores[:1] >= low).any() and (scores[:1] <= high).any())
        return False

    return takes


def _classes(given: str) -> Takes:
    names = frozenset(name.strip() for name in given.split(","))
    if "" in names:
        raise ValueError("it needs names of classes, with commas between")

    def takes(found: TaskResult, words: Vocabulary) -> bool:
        match found:
            case Detections(class_ids=ids):
                return any(class_name(words.labels, int(each)) in names for each in np.unique(ids))
            case Classes(class_ids=ids):
                return any(class_name(words.labels, int(each)) in names for each in ids[:1])
        return False

    return takes


def _empty(given: str) -> Takes:
    if given:
        raise ValueError("nothing follows 'empty'")
    return lambda found, words: isinstance(found, Detections) and not len(found)


def _rate(given: str) -> Takes:
    share = float(given.removesuffix("%")) / 100 if given.endswith("%") else float(given)
    if not 0 < share <= 1:
        raise ValueError("a rate is more than 0 % and at most 100 %")
    return lambda found, words: random.random() < share


def _unlike(given: str) -> Takes:
    least = float(given) if given else _UNLIKE
    if not 0 < least <= 1:
        raise ValueError("a distance is more than 0 and at most 1")
    kept: deque[NDArray[np.float32]] = deque(maxlen=_REMEMBERED)

    def takes(found: TaskResult, words: Vocabulary) -> bool:
        if (vector := _direction(found)) is None:
            return False
        if any(float(vector @ one) > 1 - least for one in kept if one.shape == vector.shape):
            return False
        kept.append(vector)
        return True

    return takes


def _direction(found: TaskResult) -> NDArray[np.float32] | None:
    """Return a vector of length 1 by which results are compared; None where there is none.

    Of objects it is the histogram of their scores, with the share of an image without any.
    """
    match found:
        case Embedding(unit=unit):
            return unit
        case Detections(scores=scores):
            counts = np.histogram(scores, _BINS)[0]
            vector = np.append(counts, 0 if len(scores) else 1).astype(np.float32)
            return vector / np.linalg.norm(vector)
    return None


_RULES: dict[str, Callable[[str], Takes]] = {
    "score": _score,
    "classes": _classes,
    "empty": _empty,
    "rate": _rate,
    "unlike": _unlike,
}
