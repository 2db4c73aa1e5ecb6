"""The result of recognising a model's head: a family, and what speaks for it and for others."""

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
"""The name that a user gives in place of a family for a model that is not to be decoded."""

# The demos of OpenVINO's model zoo stretch images, and its networks normalise them themselves.
_OF_OPENVINO: Mapping[str, Any] = {
    "fit": "stretch",
    "channels": "BGR",
    "scale": 1.0,
    "mean": (0.0, 0.0, 0.0),
    "std": (1.0, 1.0, 1.0),
}
_GUESSED_OF_OPENVINO = (
    "the file was OpenVINO's, whose model zoo stretches images, in BGR, 0 to 255; others differ"
)
_RENAMED = "its outputs were renamed, and their names are all that tells who trained it, and how"
_OF_RENAMED = "0-to-1", "mean-std"
# Reasons, each of which may be that of several families.
_NEAREST = 3
_OWN = "`fovea init --head` begins one of your own"
_OUTPUTS_SHOWN = 3
# Reasons why no number can speak against a family.
UNSEEN = "the images that the model was run on show nothing that it finds"
NOT_RUN = "the model could not be run"
NOT_FINITE = "what it computes is NaN or infinite on every sample image"
"""Reason against any family: numbers like these fit all."""


class ConsideredFamily(NamedTuple):
    """A family that was considered.

    Attributes:
        strength: name of a `Strength`, in lower case; None where the outputs exclude the family.
        evidence: what speaks for it; None where the outputs exclude it.
        against: what excludes it; None where nothing does.
    """

    family: str
    strength: str | None
    evidence: str | None
    against: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fit of one family, and what speaks against it.

    Attributes:
        fit: None where the outputs or the metadata exclude it.
        against: what excludes it; None where nothing does.
        unseen: the reason why no number could have spoken against it; "" where some could.
        doubt: what speaks against a family, and does not exclude it where the user names it.
    """

    family: str
    fit: Fit | None = None
    against: str | None = None
    unseen: str = ""
    doubt: str | None = None

    @property
    def rank(self) -> int:
        """The strength of the fit; -1 for a family that is excluded."""
        return -1 if self.fit is None or self.against is not None else self.fit.strength

    @property
    def order(self) -> tuple[int, int, bool]:
        """Sort key, best first: families that fit, that numbers exclude, that outputs exclude."""
        strength = -1 if self.fit is None else self.fit.strength
        return -self.rank, -strength, self.against == OTHERS


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
        unseen: the numbers had no part in it, as no image showed anything that the model finds, or
            the model could not be run.
        doubt: what speaks against a family that the user has named all the same; None where nothing
            does.
        own_fit: how the graph resizes images itself, where the family does and it is known.
        from_openvino: the file was written from one of OpenVINO, and says so.
        renamed: the names that tell the family were written by `fovea edit`.
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
        """The class names of the family, where all its models have the same."""
        return None if self.family is None else FAMILIES[self.family].labels or None

    @property
    def nameless(self) -> bool:
        """Return whether the task of the family knows no classes."""
        return is_nameless(self.family)

    @property
    def guessed(self) -> str:
        """The reason why the preprocessing is a guess; "" where it is known."""
        if self.family is None:
            guessed = "that of YOLO is taken, as no family is known"
        else:
            guessed = "" if self._known else FAMILIES[self.family].guessed
            guessed = guessed or (_RENAMED if self.renamed else "")
        return _GUESSED_OF_OPENVINO if guessed and self.from_openvino else guessed

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of what exporters of the family do otherwise in preprocessing."""
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
        """The origin of the preprocessing that the family brings, for people."""
        if self.guessed:
            return f"a guess: {self.guessed}; --preprocess settles it"
        if self.own_fit is not None:
            return f"by the family {self.family}, and as its graph resizes images"
        return f"by the family {self.family}{', which the metadata names' if self._named else ''}"

    @property
    def own_preprocess(self) -> Mapping[str, Any]:
        """Fields of `PreprocessSpec` that the graph has in place of the family's."""
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
        """The families whose outputs are like those of the model, best first."""
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
    """Return the result for a family that fits; `shown` is what the model's outputs are."""
    assert verdict.fit is not None, "it fits"
    fit = verdict.fit
    # A rarer family that has the same shapes is not worth a word.
    rivals = [one for one in verdicts if one.fit is not None and one.fit.strength >= fit.strength]
    parts = [fit.why, *(f"not {one}" for one in _list_exclusions(rivals))]
    if verdict.unseen:
        parts.append(f"{verdict.unseen}, so its numbers say nothing")
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
    """Return the result where several families fit alike."""
    families = tuple(one.family for one in best)
    unseen = next((one.unseen for one in best if one.unseen), "")
    why = f": {unseen}" if unseen else ""
    reason = f"{shown} fits {join_names(families)}, and nothing tells which of them it is{why}"
    return Recognition(
        None, reason, task_of(metadata), verdicts=verdicts, open=families, unseen=bool(unseen)
    )


def reject_all(
    reason: str, metadata: Mapping[str, str], verdicts: tuple[Verdict, ...] = ()
) -> Recognition:
    """Return the result where no family fits, or none is wanted."""
    return Recognition(None, reason, task_of(metadata), verdicts=verdicts)


def explain_none(verdicts: Iterable[Verdict]) -> str:
    """Describe why the nearest families do not fit a model that none fits."""
    nearest = nearest_of(verdicts)
    if not nearest:
        return f"no family that Fovea decodes has such outputs; {_OWN}"
    return f"no family fits; the nearest are {nearest}; {_OWN}"


def nearest_of(verdicts: Iterable[Verdict]) -> str:
    """Describe what excludes the families with outputs most like the model's; "" if none."""
    return "; ".join(_list_exclusions(verdicts))


def outputs_text(outputs: Sequence[TensorSpec]) -> str:
    """Format the names and shapes of the first outputs, and the number of the others."""
    few = [describe(tensor) for tensor in outputs[:_OUTPUTS_SHOWN]]
    more = len(outputs) - len(few)
    return ", ".join(few) + (f" and {more} more" if more > 0 else "")


def task_of(metadata: Mapping[str, str]) -> str:
    """Return the task that the metadata names, or "tensors"."""
    task = metadata.get("task", "")
    return task if task.isalnum() else TENSORS


def join_names(names: Sequence[str]) -> str:
    """Join names: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _list_exclusions(verdicts: Iterable[Verdict]) -> list[str]:
    """Describe what excludes families with outputs much like the model's, nearest first."""
    reasons: dict[str, list[str]] = {}
    for one in verdicts:
        if one.against not in (None, OTHERS):
            reasons.setdefault(one.against, []).append(one.family)
    return [f"{join_names(names)} ({why})" for why, names in list(reasons.items())[:_NEAREST]]
