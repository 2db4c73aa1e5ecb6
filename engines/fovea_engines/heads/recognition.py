"""Defines the result of recognising a model: a head family, and the evidence for and against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fovea_engines.heads.metadata import renamed_outputs
from fovea_engines.heads.registry import FAMILIES, is_nameless
from fovea_engines.heads.signature import OTHERS, Fit, Strength, describe
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.session import TensorSpec
from fovea_preprocess.spec import Fit as ImageFit

TENSORS = "tensors"
"""Name that a user can give instead of a family. Then the outputs are not decoded."""

# Usual preprocessing of models from OpenVINO's model zoo. Its demos stretch images, and its models
# normalise the pixel values in the graph.
_OF_OPENVINO: Mapping[str, Any] = {
    "fit": "stretch",
    "channels": "BGR",
    "scale": 1.0,
    "mean": (0.0, 0.0, 0.0),
    "std": (1.0, 1.0, 1.0),
}
_GUESSED_OF_OPENVINO = (
    "the model was converted from OpenVINO; its model zoo uses stretched BGR images with values "
    "from 0 to 255, but other exporters may not"
)
_RENAMED = (
    "its outputs were renamed, and only the new names identify the family, so its preprocessing "
    "is a guess"
)
_OF_RENAMED = "0-to-1", "mean-std"
# Largest number of reasons in a message. Several families may share a reason.
_NEAREST = 3
_OWN = "`fovea init --head` creates a head file of your own"
_OUTPUTS_SHOWN = 3
# Reasons why the model's output values are no evidence for or against a family.
UNSEEN = "the model found no object on the sample images"
NOT_RUN = "the model could not be run"
NOT_FINITE = "its outputs contain NaN or infinity on every sample image"
"""Reason that excludes every family, because no head can decode such output values."""


class ConsideredFamily(NamedTuple):
    """A family that was considered.

    Attributes:
        family: name of the family.
        strength: name of a `Strength` in lower case; None if the names or shapes of the outputs
            exclude the family.
        evidence: evidence for the family; None if the names or shapes of the outputs exclude it.
        against: reason that excludes the family; None if there is no such reason.
    """

    family: str
    strength: str | None
    evidence: str | None
    against: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fit of one family, and the reasons against it.

    Attributes:
        family: name of the family.
        fit: fit of the family; None if the outputs' names and shapes or the metadata exclude it.
        against: reason that excludes the family; None if there is no such reason.
        unseen: reason why the output values are no evidence; "" if they are evidence.
        doubt: reason that excludes the family only if the user did not name it; None if there is no
            such reason.
    """

    family: str
    fit: Fit | None = None
    against: str | None = None
    unseen: str = ""
    doubt: str | None = None

    @property
    def rank(self) -> int:
        """The strength of the fit; -1 if the family is excluded."""
        return -1 if self.fit is None or self.against is not None else self.fit.strength

    @property
    def order(self) -> tuple[int, int, bool]:
        """Sort key of the verdict, best first.

        First come families that fit, then families that output values exclude, and last families
        that the names and shapes of outputs exclude.
        """
        strength = -1 if self.fit is None else self.fit.strength
        return -self.rank, -strength, self.against == OTHERS


@dataclass(frozen=True, slots=True)
class Recognition:
    """Result of recognising a model's head.

    Attributes:
        family: name in `FAMILIES`; None if the outputs are not decoded and raw tensors are served.
        reason: evidence for the family. Without a family, the reason against all families.
        task: task of the family; without a family, the metadata's task, or "tensors".
        num_classes: number of classes; None if unknown.
        outputs: names of the outputs that the head reads.
        verdicts: verdicts on all families that were considered, best first.
        open: families that fit equally well, so that the user must choose; otherwise empty.
        skeleton: names of the keypoints; None if there are none.
        unseen: True if the output values are no evidence, because the model found nothing on the
            sample images, or could not be run.
        doubt: reason against the family that the user named; None if there is no such reason.
        own_fit: `fit` of the preprocessing that the graph itself applies to images; None if the
            graph does not resize images, or if this is unknown.
        from_openvino: True if the file's metadata states that it was converted from OpenVINO.
        renamed: True if `fovea edit` wrote the names that identify the family.
    """

    family: str | None
    reason: str
    task: str
    num_classes: int | None = None
    outputs: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    open: tuple[str, ...] = ()
    skeleton: Skeleton | None = None
    unseen: bool = False
    doubt: str | None = None
    own_fit: ImageFit | None = None
    from_openvino: bool = False
    renamed: bool = False

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The class names, if all models of the family have the same names; otherwise None."""
        return None if self.family is None else FAMILIES[self.family].labels or None

    @property
    def nameless(self) -> bool:
        """Return whether the task of the family has no classes."""
        return is_nameless(self.family)

    @property
    def guessed(self) -> str:
        """The reason why the preprocessing is a guess; "" if the preprocessing is known."""
        if self.family is None:
            guessed = "the preprocessing of YOLO, because the family is unknown"
        else:
            guessed = "" if self._known else FAMILIES[self.family].guessed
            guessed = guessed or (_RENAMED if self.renamed else "")
        return _GUESSED_OF_OPENVINO if guessed and self.from_openvino else guessed

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of variants of the preprocessing that exporters of the family use."""
        if self.family is None or self._known:
            return ()
        own = FAMILIES[self.family].variants
        return tuple(dict.fromkeys((*own, *_OF_RENAMED))) if self.renamed else own

    @property
    def resizes(self) -> bool:
        """Return whether models of the family resize images themselves."""
        return self.family is not None and FAMILIES[self.family].resizes

    @property
    def preprocess_from(self) -> str:
        """The origin of the family's preprocessing, as text."""
        if self.guessed:
            return f"a guess: {self.guessed}; --preprocess replaces it"
        if self.own_fit is not None:
            return f"by the family {self.family}, and by the resizing in its graph"
        return f"by the family {self.family}{', which the metadata names' if self._named else ''}"

    @property
    def own_preprocess(self) -> Mapping[str, Any]:
        """Fields of `PreprocessSpec` in which this model differs from its family."""
        fields = _OF_OPENVINO if self.from_openvino and self.guessed else {}
        return fields if self.own_fit is None else {**fields, "fit": self.own_fit}

    @property
    def _known(self) -> bool:
        return self._named or self.own_fit is not None

    @property
    def _named(self) -> bool:
        return any(
            one.family == self.family and one.fit and one.fit.strength is Strength.METADATA
            for one in self.verdicts
        )

    @property
    def candidates(self) -> tuple[ConsideredFamily, ...]:
        """The families that the names and shapes of the outputs allow, best first."""
        return tuple(
            ConsideredFamily(
                one.family,
                None if one.fit is None else one.fit.strength.name.lower(),
                None if one.fit is None else one.fit.why,
                one.against,
            )
            for one in self.verdicts
            if one.against != OTHERS
        )


def accept_family(
    verdict: Verdict, shown: str, metadata: Mapping[str, str], verdicts: tuple[Verdict, ...] = ()
) -> Recognition:
    """Return the recognition for a family that fits. `shown` describes the model's outputs."""
    assert verdict.fit is not None, "it fits"
    fit = verdict.fit
    # Do not list rarer families whose outputs have the same shape.
    rivals = [one for one in verdicts if one.fit is not None and one.fit.strength >= fit.strength]
    parts = [fit.why, *(f"not {one}" for one in _list_exclusions(rivals))]
    if verdict.unseen:
        parts.append(f"{verdict.unseen}, so the outputs could not be checked")
    return Recognition(
        family=verdict.family,
        reason=f"{shown}: {'; '.join(parts)}",
        task=FAMILIES[verdict.family].task,
        num_classes=fit.num_classes,
        outputs=fit.outputs,
        verdicts=verdicts,
        skeleton=fit.skeleton,
        unseen=bool(verdict.unseen),
        doubt=verdict.doubt,
        renamed=fit.strength is Strength.NAMES
        and not renamed_outputs(metadata).keys().isdisjoint(fit.outputs),
    )


def leave_open(
    best: Sequence[Verdict], shown: str, metadata: Mapping[str, str], verdicts: tuple[Verdict, ...]
) -> Recognition:
    """Return the recognition if several families fit equally well."""
    families = tuple(one.family for one in best)
    unseen = next((one.unseen for one in best if one.unseen), "")
    why = f": {unseen}" if unseen else ""
    reason = (
        f"{shown} fits {join_names(families)}; the outputs do not show which of them it is{why}"
    )
    return Recognition(
        None, reason, task_of(metadata), verdicts=verdicts, open=families, unseen=bool(unseen)
    )


def reject_all(
    reason: str, metadata: Mapping[str, str], verdicts: tuple[Verdict, ...] = ()
) -> Recognition:
    """Return the recognition if no family fits, or if the user does not want a family."""
    return Recognition(None, reason, task_of(metadata), verdicts=verdicts)


def explain_none(verdicts: Iterable[Verdict]) -> str:
    """Describe why the nearest families do not fit."""
    nearest = nearest_of(verdicts)
    if not nearest:
        return f"no family that Fovea decodes has such outputs; {_OWN}"
    return f"no family fits; the nearest are {nearest}; {_OWN}"


def nearest_of(verdicts: Iterable[Verdict]) -> str:
    """Return a text with the reasons that exclude the most similar families.

    If there are no similar families, return an empty text.
    """
    return "; ".join(_list_exclusions(verdicts))


def outputs_text(outputs: Sequence[TensorSpec]) -> str:
    """Format the names and shapes of the first outputs, and the number of further outputs."""
    few = [describe(tensor) for tensor in outputs[:_OUTPUTS_SHOWN]]
    more = len(outputs) - len(few)
    return ", ".join(few) + (f" and {more} more" if more > 0 else "")


def task_of(metadata: Mapping[str, str]) -> str:
    """Return the task in the metadata, or "tensors"."""
    task = metadata.get("task", "")
    return task if task.isalnum() else TENSORS


def join_names(names: Sequence[str]) -> str:
    """Join names to a text such as "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _list_exclusions(verdicts: Iterable[Verdict]) -> list[str]:
    """Return the reasons that exclude families with similar outputs, most similar first."""
    reasons: dict[str, list[str]] = {}
    for one in verdicts:
        if one.against not in (None, OTHERS):
            reasons.setdefault(one.against, []).append(one.family)
    return [f"{join_names(names)} ({why})" for why, names in list(reasons.items())[:_NEAREST]]
