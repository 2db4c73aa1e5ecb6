"""Selects the classes of labels to measure, and counts the objects that are left out."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fovea_engines.evaluation.class_folders import ClassFolders
from fovea_engines.evaluation.class_maps import ClassMaps
from fovea_engines.evaluation.dataset import Dataset, share_numbers
from fovea_engines.evaluation.label_tables import AttributeLabels, TextLabels
from fovea_engines.evaluation.labels import Labels
from fovea_engines.evaluation.pictures import PicturePairs
from fovea_engines.results.class_names import split_classes
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.text import counted

_SHOWN = 8


@dataclass(frozen=True, slots=True, eq=False)
class LabelSelection:
    """The labels to measure.

    Attributes:
        labelled: the labels of the selected classes.
        left_out: for each class that is not measured, the number of its objects or images.
        lacking: classes of the labels that the model does not have.
    """

    labelled: Labels
    left_out: Mapping[str, int]
    lacking: Sequence[str] = ()

    @property
    def note(self) -> str:
        """A description of the labels that are not measured; empty if all labels are measured."""
        parts = []
        if others := [name for name in self.left_out if name not in self.lacking]:
            things = _things(self.labelled, sum(self.left_out[name] for name in others))
            parts.append(f"{counted(len(others), 'other class')} ({things})")
        if self.lacking:
            named = _format_counts(
                {name: self.left_out[name] for name in self.lacking}, self.labelled
            )
            parts.append(f"{named}, which the model lacks")
        return f"not measured: {'; '.join(parts)}" if parts else ""


def choose(
    labelled: Labels,
    classes: str | None,
    labels: Sequence[str] | None,
    num_classes: int | None = None,
) -> LabelSelection:
    """Return the labels of the classes in `--classes`, or of all classes.

    If `classes` is given, classes that the model lacks are left out. If `classes` is None, they are
    an error: their names may only be spelt differently, or the accuracy would cover fewer classes
    than the labels.

    Args:
        labelled: labels of the images.
        classes: value of `--classes`; None for all classes.
        labels: class names of the model; None if they are unknown.
        num_classes: number of the model's classes; None if it is unknown.

    Raises:
        InvalidOption: `classes` names a class that the labels lack, or only classes that the model
            lacks; `classes` is None and the model lacks some classes of the labels; or `classes` is
            given for labels that are class maps, tables or images.
    """
    if isinstance(labelled, TextLabels | AttributeLabels | PicturePairs):
        if classes is not None:
            raise InvalidOption(
                "--classes does not apply to tables or generated images: leave it out"
            )
        return LabelSelection(labelled, {})
    if isinstance(labelled, ClassMaps):
        if classes is not None:
            raise InvalidOption(
                "--classes does not apply to maps: to exclude a level, leave its line in "
                f"{labelled.path / 'classes.txt'} empty"
            )
        return LabelSelection(labelled, {})
    counts = _counts(labelled)
    known = _map_known(labelled, counts, labels, num_classes)
    lacking = [name for name in counts if name not in known]
    if classes is None:
        if lacking and known:
            named = _format_counts({name: counts[name] for name in lacking}, labelled)
            shared = ",".join(map(_normalise, known.values()))
            raise InvalidOption(
                f"{labelled.path} has classes that the model lacks: {named}. Use the same names "
                "in the labels and the model (`fovea build --labels`), or measure only the shared "
                f"classes: --classes {shared}"
            )
        return LabelSelection(labelled, {})
    wanted = _match_typed(classes, labelled, counts, known, labels)
    if wanted.isdisjoint(known):
        raise InvalidOption(f"--classes {classes}: the model has none of these classes")
    left_out = {
        known.get(name, name): count
        for name, count in counts.items()
        if name not in wanted or name not in known
    }
    return LabelSelection(_only(labelled, wanted.intersection(known)), left_out, lacking)


def _names(labelled: Dataset, class_ids: Sequence[int]) -> list[str]:
    names = labelled.class_names
    return [str(each) if names is None else names[each] for each in class_ids]


def _counts(labelled: Dataset | ClassFolders) -> Counter[str]:
    """Count the objects (without crowds) or the images of each class of the labels."""
    if isinstance(labelled, ClassFolders):
        return Counter(image.parent.name for image in labelled.images)
    found = Counter[str]()
    for image in labelled.images:
        found.update(_names(labelled, image.class_ids[~image.crowd].tolist()))
    return found


def _map_known(
    labelled: Dataset | ClassFolders,
    counts: Mapping[str, int],
    labels: Sequence[str] | None,
    num_classes: int | None,
) -> dict[str, str]:
    """Return the model's name for each class of the labels that the model has.

    The names are matched by the same rules as in `match_classes`.
    """
    own = labelled.class_names if isinstance(labelled, Dataset) else None
    if labels is None:
        if own is not None or num_classes is None:
            return {name: name for name in counts}
        labels = [str(number) for number in range(num_classes)]
    if isinstance(labelled, Dataset):
        if own is None:
            by_number = {str(number): label for number, label in enumerate(labels)}
            return {name: by_number[name] for name in counts if name in by_number}
        if not counts.keys() <= set(labels) and share_numbers(own, labels):
            return dict(zip(own, labels, strict=True))
    return {name: name for name in counts if name in labels}


def _match_typed(
    classes: str,
    labelled: Labels,
    counts: Mapping[str, int],
    known: Mapping[str, str],
    labels: Sequence[str] | None,
) -> set[str]:
    """Return the classes of the labels that `classes` names.

    A class may be typed as its name in the labels, its name in the model, or its id.
    """
    try:
        typed = split_classes(classes)
    except ValueError as error:
        raise InvalidOption(f"--classes {classes}: {error}") from error
    spelt: dict[str, set[str]] = {}
    for name in counts:
        for spelling in (name, known.get(name, name)):
            spelt.setdefault(spelling.casefold(), set()).add(name)
    wanted: set[str] = set()
    for each in typed:
        name = str(each)
        if isinstance(each, int) and labels is not None and 0 <= each < len(labels):
            name = labels[each]
        if name.casefold() not in spelt:
            # The model has this class, but the labels have no object of it. Such a class is left
            # out of the mean, as in COCO.
            if name in (labels or ()):
                continue
            close = difflib.get_close_matches(name.casefold(), spelt, n=1)
            named = {known.get(own, own): count for own, count in counts.items()}
            advice = (
                f"did you mean {close[0]!r}?"
                if close
                else f"it has {_format_counts(named, labelled)}"
            )
            raise InvalidOption(f"--classes: {labelled.path} has no object of {name!r}; {advice}")
        wanted |= spelt[name.casefold()]
    if not wanted:
        raise InvalidOption(f"--classes: {labelled.path} has no object of {classes}")
    return wanted


def _only(labelled: Dataset | ClassFolders, kept: Container[str]) -> Labels:
    if isinstance(labelled, ClassFolders):
        return labelled.keep_images(
            [image for image in labelled.images if image.parent.name in kept]
        )
    images = []
    for image in labelled.images:
        names = _names(labelled, image.class_ids.tolist())
        images.append(image.take(np.flatnonzero([name in kept for name in names])))
    return replace(labelled, images=tuple(images))


def _format_counts(counts: Mapping[str, int], labelled: Labels) -> str:
    """Format class names with counts, such as "person (12 objects), dog (3)"."""
    most = sorted(counts, key=lambda name: -counts[name])
    texts = [f"{name} ({counts[name]})" for name in most[:_SHOWN]]
    texts[0] = f"{most[0]} ({_things(labelled, counts[most[0]])})"
    return ", ".join([*texts, f"and {len(most) - _SHOWN} more"][: len(most)])


def _things(labelled: Labels, count: int) -> str:
    return counted(count, "image" if isinstance(labelled, ClassFolders) else "object")


def _normalise(name: str) -> str:
    """Put a name into quotes if `split_classes` would misread it."""
    quote = '"' if name.isdigit() or "," in name or name.strip() != name else ""
    return f"{quote}{name}{quote}"
