"""Rules in fovea.toml that choose the images to capture, by the results of the model."""

from __future__ import annotations

import random
import re
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fovea_engines.results.class_names import class_name
from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.mistakes import suggest
from fovea_server.models.config.config_check import validate

SETTINGS_FILE = "fovea.toml"
_TABLES = ("capture",)

FORMS = (
    "'score 0.3..0.5' (an object has a score in this range), 'classes person,dog', 'empty' (no "
    "object was detected), 'rate 1%' (1 % of the images, at random), 'unlike' or 'unlike 0.4' "
    "(the result differs from earlier captures)"
)

Takes = Callable[[TaskResult, Vocabulary], bool]

_RANGE = re.compile(r"([0-9.]+)\.\.([0-9.]+)")
_UNLIKE = 0.3
_REMEMBERED = 512
# Size in bytes of the largest result that the rule "unlike" remembers for comparison. Embeddings
# and class scores are smaller; maps with a value for each pixel are larger.
_LARGEST = 65_536
_BINS = np.linspace(0, 1, 11)


class CaptureTable(BaseModel):
    """Table `[capture]` of fovea.toml."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rules: list[str] | None = None
    per_minute: int = Field(60, ge=0)
    blur: str | None = Field(None, min_length=1)


@dataclass(frozen=True, slots=True)
class CaptureRules:
    """Settings that choose the captured images of one model.

    Attributes:
        rules: the rules, in order. The first rule that matches an image is stored with the image.
            Without rules, no image is captured.
        per_minute: largest number of captures per minute.
        blur: name of a model; the objects that it detects are blurred before an image is stored.
            None for no blurring.
    """

    rules: tuple[Rule, ...]
    per_minute: int
    blur: str | None


def read_rules(folder: Path, usual: tuple[str, ...]) -> CaptureRules:
    """Read the table `[capture]` of a model's fovea.toml; the file or the table may be missing.

    Args:
        folder: directory of the model.
        usual: rules for a model whose fovea.toml sets no rules.

    Raises:
        InvalidOption: the file or a rule is invalid; the message describes the valid form.
    """
    path = folder / SETTINGS_FILE
    try:
        document = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        document = {}
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidOption(f"{path}: {error}") from None
    if unknown := sorted(set(document) - {*_TABLES}):
        hint = suggest(unknown[0], _TABLES)
        raise InvalidOption(f"{path}: [{unknown[0]}] is an unknown table{hint}")
    try:
        table = validate(CaptureTable, document.get("capture", {}))
        given = usual if table.rules is None else tuple(table.rules)
        rules = tuple(parse_rule(text) for text in given)
    except InvalidOption as error:
        raise InvalidOption(f"{path}, [capture]: {error}") from None
    return CaptureRules(rules, table.per_minute, table.blur)


def check_rules(folder: Path, labels: Sequence[str] | None) -> None:
    """Check the `[capture]` table in a model's directory.

    Raises:
        InvalidOption: `read_rules` raises it, the model named by `blur` is missing, or a rule names
            an unknown class.
    """
    read = read_rules(folder, ())
    if read.blur is not None and not (folder.parent / read.blur).is_dir():
        there = [each.name for each in folder.parent.iterdir() if each.is_dir()]
        raise InvalidOption(
            f"{folder / SETTINGS_FILE}, [capture]: blur names the unknown model '{read.blur}', so "
            f"no image is captured{suggest(read.blur, there)}"
        )
    for rule in read.rules:
        try:
            rule.check(labels)
        except InvalidOption as error:
            raise InvalidOption(f"{folder / SETTINGS_FILE}, [capture]: {error}") from None


@dataclass(frozen=True, slots=True)
class Rule:
    """The text of a rule, and the function that decides on the result of an image."""

    text: str
    takes: Takes

    def check(self, labels: Sequence[str] | None) -> None:
        """Raise InvalidOption if the rule names classes that are not in `labels`."""
        word, _, rest = self.text.partition(" ")
        if labels is None or word != "classes":
            return
        for name in rest.split(","):
            if (given := name.strip()) not in labels:
                near = get_close_matches(given, labels, 1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise InvalidOption(f"rule '{self.text}': the model has no class '{given}'{hint}")


def parse_rule(text: str) -> Rule:
    """Parse a rule; raise InvalidOption with the valid forms if it is invalid."""
    word, _, rest = text.strip().partition(" ")
    try:
        return Rule(text.strip(), _RULES[word](rest.strip()))
    except KeyError:
        near = get_close_matches(word, _RULES, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise InvalidOption(f"{text!r} is not a capture rule: {hint}rules are {FORMS}") from None
    except ValueError as error:
        raise InvalidOption(f"rule {text!r}: {error}; rules are {FORMS}") from None


def _score(given: str) -> Takes:
    found = _RANGE.fullmatch(given)
    if found is None:
        raise ValueError("the value must be two scores, such as 0.3..0.5")
    low, high = map(float, found.groups())
    if not 0 <= low < high <= 1:
        raise ValueError("scores must be from 0 to 1, the lower one first")

    return lambda found, vocabulary: any(low <= score <= high for _, score in _list_scores(found))


def _classes(given: str) -> Takes:
    names = frozenset(name.strip() for name in given.split(","))
    if "" in names:
        raise ValueError("the value must be class names, separated by commas")

    return lambda found, vocabulary: any(
        class_name(vocabulary.labels, each) in names for each, _ in _list_scores(found)
    )


def _list_scores(found: TaskResult) -> Iterable[tuple[int, float]]:
    """List the class ids and scores of all objects, or of only the first class of a classifier."""
    if not isinstance(found, Detections | Classes):
        return ()
    # The other classes of a classifier have low scores on every image, so they do not count.
    most = 1 if isinstance(found, Classes) else None
    return zip(found.class_ids[:most].tolist(), found.scores[:most].tolist(), strict=True)


def _empty(given: str) -> Takes:
    if given:
        raise ValueError("'empty' has no value")
    return lambda found, vocabulary: isinstance(found, Detections) and not len(found)


def _rate(given: str) -> Takes:
    share = float(given.removesuffix("%")) / 100 if given.endswith("%") else float(given)
    if not 0 < share <= 1:
        raise ValueError("a rate must be above 0 % and at most 100 %")
    return lambda found, vocabulary: random.random() < share


def _unlike(given: str) -> Takes:
    least = float(given) if given else _UNLIKE
    if not 0 < least <= 1:
        raise ValueError("a distance must be above 0 and at most 1")
    kept: deque[TaskResult | NDArray[np.float64]] = deque(maxlen=_REMEMBERED)

    def takes(found: TaskResult, vocabulary: Vocabulary) -> bool:
        mark = _histogram(found) if isinstance(found, Detections) else found
        if isinstance(mark, TaskResult) and not _remembers(mark):
            return False
        if not all(1 - _likeness(mark, other) >= least for other in kept):
            return False
        kept.append(mark)
        return True

    return takes


def _histogram(found: Detections) -> NDArray[np.float64]:
    """Return the histogram of the scores as a unit vector; one more bin counts "no objects"."""
    counts = np.append(np.histogram(found.scores, _BINS)[0], not len(found)).astype(np.float64)
    return np.divide(counts, np.linalg.norm(counts))


def _likeness(
    one: TaskResult | NDArray[np.float64], other: TaskResult | NDArray[np.float64]
) -> float:
    """Return the similarity of two results, from 0 (nothing in common) to 1 (equal)."""
    if isinstance(one, TaskResult):
        return (one.similarity(other) if isinstance(other, type(one)) else None) or 0.0
    return 0.0 if isinstance(other, TaskResult) else float(one @ other)


def _remembers(found: TaskResult) -> bool:
    """Return whether a result is comparable with others and small enough to remember."""
    size = sum(each.nbytes for each in found.arrays)
    return size <= _LARGEST and found.similarity(found) is not None


_RULES: dict[str, Callable[[str], Takes]] = {
    "score": _score,
    "classes": _classes,
    "empty": _empty,
    "rate": _rate,
    "unlike": _unlike,
}
