"""Recognises a model's family: by metadata, names and shapes, and by what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from warnings import catch_warnings, simplefilter

import numpy as np

from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.heads.metadata import (
    image_size,
    labels_from_metadata,
    task_from_metadata,
)
from fovea_engines.detect.heads.registry import FAMILIES
from fovea_engines.detect.heads.signature import (
    OTHERS,
    Fit,
    Signature,
    describe,
    image_layout,
    image_sides,
)
from fovea_engines.detect.skeleton import Skeleton
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

TENSORS = "tensors"
"""The name that a user gives in place of a family for a model that is not to be decoded."""

Observe = Callable[[str | None], Sequence[Mapping[str, Array]]]
"""Runs a model on sample images, preprocessed as for a family: its outputs for each, [1, ...]."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fit of one family, and what speaks against it.

    Attributes:
        fit: None where the outputs or the metadata exclude it.
        against: what excludes it; None where nothing does.
    """

    family: str
    fit: Fit | None = None
    against: str | None = None

    @property
    def rank(self) -> int:
        """The strength of the fit; -1 for a family that is excluded."""
        return -1 if self.fit is None or self.against is not None else self.fit.strength


@dataclass(frozen=True, slots=True)
class Recognition:
    """Result of recognising a model's head.

    Attributes:
        family: name in `FAMILIES`; None serves tensors only.
        reason: evidence for the family, or against every family.
        task: "detect" with a family; else the metadata's task, or "tensors".
        num_classes: None where unknown.
        outputs: names of the outputs that the head reads.
        verdicts: on all families that were considered, best first.
        open: families between which the evidence does not decide; empty where it does.
        skeleton: of the keypoints; None without them.
    """

    family: str | None
    reason: str
    task: str
    num_classes: int | None = None
    outputs: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    open: tuple[str, ...] = ()
    skeleton: Skeleton | None = None

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The class names of the family, where all its models have the same."""
        return None if self.family is None else FAMILIES[self.family].labels or None


def recognise(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    family: str | None = None,
    observe: Observe | None = None,
) -> Recognition:
    """Recognise a model by its tensors and metadata, and by what `observe` sees it compute.

    A `family` that the user names decides between families that fit; `TENSORS` refuses all.

    Raises:
        InvalidOption: the named family is unknown.
        UnsupportedModel: the shapes or the numbers exclude the named family.
    """
    check_family(family)
    if family == TENSORS:
        return _tensors("chosen by --head", metadata)
    seen = observe is None or observe(None)
    if observe is not None:
        outputs = _with_shapes(outputs, observe(None))
    signature = _signature(inputs, outputs, metadata)
    if isinstance(signature, str):
        if family is not None:
            raise UnsupportedModel(f"the model is not of family {family}: {signature}")
        return _tensors(signature, metadata)
    judge = _Judge(signature, observe)
    shown = ", ".join(map(describe, outputs))
    if not seen:
        shown += " (whose numbers could not be seen)"
    if family is not None:
        verdict = judge(family)
        if verdict.against is not None:
            others = [v.family for v in map(judge, FAMILIES) if v.against is None]
            could = f"it could be {', '.join(others)}" if others else "no family fits: leave it out"
            raise UnsupportedModel(
                f"the model is not of family {family}: {verdict.against}; {could} ({shown})"
            )
        return _recognised(verdict, f"{shown}: chosen by --head", ())

    verdicts = tuple(sorted(map(judge, FAMILIES), key=lambda one: (-one.rank, one.fit is None)))
    best = [one for one in verdicts if one.rank == verdicts[0].rank >= 0]
    if len(best) == 1:
        return _recognised(best[0], shown, verdicts)
    if best:
        names = tuple(one.family for one in best)
        question = f"{shown} fits {' and '.join(names)} alike: choose one with --head"
        return _tensors(question, metadata, verdicts, names)
    return _tensors(f"{shown}: {_against(verdicts) or 'no family has such outputs'}", metadata)


def check_family(family: str | None) -> None:
    """Refuse, as InvalidOption, a family that the user names and that there is not."""
    known = (*FAMILIES, TENSORS)
    if family is None or family in known:
        return
    near = " or ".join(get_close_matches(family, known, 2))
    meant = f"; did you mean {near}?" if near else ""
    raise InvalidOption(f"there is no head {family!r}{meant} There are {', '.join(known)}")


class _Judge:
    """Asks families how they fit a model, and the numbers what they say against it."""

    def __init__(self, signature: Signature, observe: Observe | None) -> None:
        self._signature = signature
        self._observe = observe

    def __call__(self, family: str) -> Verdict:
        head, task = FAMILIES[family], self._signature.task
        if task not in (None, head.task):
            return Verdict(family, against=f"the metadata says task {task}")
        fit = head.fit(self._signature)
        if isinstance(fit, str):
            return Verdict(family, against=fit)
        if self._observe is not None and (head.sized <= (self._signature.size is not None)):
            opened = head.open(fit.outputs, self._signature.size, fit.num_classes, fit.skeleton)
            # With the preprocessing of another family a model computes nonsense, so that of most
            # models is seen, too.
            for outputs in (*self._observe(family), *self._observe(None)):
                with np.errstate(all="ignore"), catch_warnings():
                    # Medians and ranges of no finite number.
                    simplefilter("ignore", RuntimeWarning)
                    reason = opened.contradiction(outputs)
                if reason is not None:
                    return Verdict(family, fit, reason)
        return Verdict(family, fit)


def open_head(recognition: Recognition, inputs: Sequence[TensorSpec]) -> Head | None:
    """Return the head that decodes a recognised model; None without a family.

    A dynamic input is an UnsupportedModel to some families.
    """
    if recognition.family is None:
        return None
    return FAMILIES[recognition.family].open(
        recognition.outputs, _spatial(inputs[0]), recognition.num_classes, recognition.skeleton
    )


def _recognised(verdict: Verdict, shown: str, verdicts: tuple[Verdict, ...]) -> Recognition:
    assert verdict.fit is not None
    fit = verdict.fit
    # Of what has the shape of this family and is rarer, nothing is said.
    rivals = [one for one in verdicts if one.fit is not None and one.fit.strength >= fit.strength]
    against = _against(rivals)
    why = "; ".join(filter(None, [verdict.fit.why, against]))
    return Recognition(
        family=verdict.family,
        reason=f"{shown}: {why}",
        task=FAMILIES[verdict.family].task,
        num_classes=verdict.fit.num_classes,
        outputs=verdict.fit.outputs,
        verdicts=verdicts,
        skeleton=verdict.fit.skeleton,
    )


def _against(verdicts: Sequence[Verdict]) -> str:
    """Say what excludes families whose outputs are much like those of the model."""
    families: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.against not in (None, OTHERS):
            families.setdefault(verdict.against, []).append(verdict.family)
    return "; ".join(f"not {', '.join(names)}, as {why}" for why, names in families.items())


def _tensors(
    reason: str,
    metadata: Mapping[str, str],
    verdicts: tuple[Verdict, ...] = (),
    open_between: tuple[str, ...] = (),
) -> Recognition:
    task = metadata.get("task", "")
    return Recognition(
        None,
        f"{reason}: serves tensors",
        task if task.isalnum() else TENSORS,
        verdicts=verdicts,
        open=open_between,
    )


def _spatial(image: TensorSpec) -> tuple[int, int] | None:
    """Return (height, width) of an image input; None when either is dynamic."""
    sides = image_sides(image)
    return None if -1 in sides else sides


def _with_shapes(
    outputs: Sequence[TensorSpec], seen: Sequence[Mapping[str, Array]]
) -> list[TensorSpec]:
    """Return outputs with the lengths that every image has, where they are declared as dynamic."""
    known = []
    for tensor in outputs:
        shapes = [one[tensor.name].shape for one in seen]
        if shapes and all(len(shape) == len(tensor.shape) for shape in shapes):
            lengths = zip(tensor.shape[1:], *(shape[1:] for shape in shapes), strict=True)
            rest = (
                found[0] if declared == -1 and len(set(found)) == 1 else declared
                for declared, *found in lengths
            )
            tensor = replace(tensor, shape=(*tensor.shape[:1], *rest))
        known.append(tensor)
    return known


def _signature(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> Signature | str:
    """Return the facts that identify a family, or the reason why no family fits."""
    task = task_from_metadata(metadata)
    if task is not None and task not in {head.task for head in FAMILIES.values()}:
        return f"task {task!r} is not decoded yet"
    if len(inputs) != 1 or image_layout(inputs[0]) is None:
        shown = ", ".join(describe(tensor) for tensor in inputs)
        return f"input {shown} is not one batch of colour images"
    labels = labels_from_metadata(metadata, None)
    return Signature(
        task=task,
        size=_spatial(inputs[0]) or image_size(metadata),
        outputs=tuple(outputs),
        metadata=metadata,
        num_labels=None if labels is None else len(labels),
    )
