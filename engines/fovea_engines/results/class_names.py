"""Converts class names in the options of a request to class ids, which heads compare."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption

# Limits for error messages: the number of letters of a name, and the number of class names in a
# list. They also limit the time of the search for similar names.
_SHOWN = 60
_LISTED = 10

# Pattern of one name in a list. All quantifiers are possessive (no backtracking), so that a long
# text with an unmatched quote is rejected in one pass.
_WORD = re.compile(r'\s*+(?:"(?P<name>(?:[^"]++|"")++)"|(?P<plain>[^",][^,]*+))\s*+(?P<end>,|\Z)')
_ID = re.compile(r"-?[0-9]+")


def class_name(labels: Sequence[str] | None, class_id: int) -> str:
    """Return the label of a class, or its id as text if the model has no label for it."""
    return labels[class_id] if labels and class_id < len(labels) else str(class_id)


def shown_name(labels: Sequence[str] | None, class_id: int) -> str:
    """Return the label of a class for drawings. Without a label, return e.g. "class 6"."""
    return labels[class_id] if labels and class_id < len(labels) else f"class {class_id}"


def split_classes(text: str) -> tuple[int | str, ...]:
    """Parse class ids and names from text such as ``person,5``.

    A whole number is an id. Double quotes enclose a name that contains a comma, begins or ends with
    a blank, or has only digits.

    Raises:
        ValueError: the quotes do not match, or a name is empty.
    """
    return tuple(
        int(name) if plain and _ID.fullmatch(name) else name for name, plain in _names(text)
    )


def split_texts(text: str) -> tuple[str, ...]:
    """Parse texts such as ``a cat,a dog``. Double quotes enclose a text that contains a comma.

    Raises:
        ValueError: the quotes do not match, or a text is empty.
    """
    return tuple(name for name, _ in _names(text))


def _names(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each name of a list, and whether the name was written without quotes."""
    at, end = 0, ","
    while end:
        word = _WORD.match(text, at)
        if word is None:
            raise ValueError("quotes are not balanced, or a name is empty")
        at, end = word.end(), word["end"]
        plain = (word["plain"] or "").strip()
        yield plain or word["name"].replace('""', '"'), bool(plain)


def resolve_classes(
    options: PredictOptions, labels: tuple[str, ...] | None, model: str, count: int | None = None
) -> PredictOptions:
    """Replace class names in the options of a request by ids.

    A name is compared exactly. If no class has this name, upper and lower case are ignored. If
    several classes have the name, the ids of all of them are kept.

    Args:
        options: options of the request.
        labels: names of the model's classes; None if unknown.
        model: name of the model, for error messages.
        count: number of the model's classes; None if unknown.

    Raises:
        InvalidOption: the model has no class with one of the ids or names.
    """
    if options.classes is None:
        return options
    given = [each for each in options.classes if isinstance(each, int)]
    if count is not None and max(given, default=0) >= count:
        raise InvalidOption(
            f"model '{model}' has no class {max(given)}; its class ids are 0 to {count - 1}"
        )
    if len(given) == len(options.classes):
        return options
    ids: dict[str, list[int]] = defaultdict(list)
    spellings: dict[str, set[str]] = defaultdict(set)
    for index, label in enumerate(labels or ()):
        ids[label].append(index)
        spellings[label.casefold()].add(label)
    kept: list[int] = []
    for each in options.classes:
        if isinstance(each, int):
            kept.append(each)
        elif each in ids:
            kept += ids[each]
        elif len(same := spellings.get(each.casefold(), ())) == 1:
            kept += ids[next(iter(same))]
        else:
            raise InvalidOption(
                f"model '{model}' has no {_advice(each, labels, sorted(same), model)}"
            )
    return replace(options, classes=tuple(dict.fromkeys(kept)))


def _advice(name: str, labels: tuple[str, ...] | None, same: list[str], model: str) -> str:
    """Return the end of the error message for an unknown class name."""
    name = name[:_SHOWN]
    if not labels:
        return (
            f"labels, so it has no class '{name}': give class ids, or build the model with names "
            "(`fovea build --labels coco`, or a FILE with one label per line)"
        )
    shown = f"class '{name}'"
    if same:
        return f"{shown} with this spelling; it has {_either(same)}"
    folded = {label.casefold(): label for label in labels}
    if _ID.fullmatch(name):
        return f"{shown}: write an id without quotes"
    if close := difflib.get_close_matches(name.casefold(), folded, n=3):
        return f"{shown}; did you mean {_either([folded[each] for each in close])}?"
    listed = f"{shown}; its classes are {', '.join(labels[:_LISTED])}"
    if len(labels) <= _LISTED:
        return listed
    return f"{listed}, ...; GET /v1/models/{model} lists all {len(labels)}"


def _either(names: list[str]) -> str:
    shown = " or ".join(f"'{name}'" for name in names)
    special = any(
        name != name.strip().strip('"') or "," in name or _ID.fullmatch(name) for name in names
    )
    return f"{shown} (in text: in double quotes)" if special else shown
