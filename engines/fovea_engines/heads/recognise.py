"""Recognises a model's head family by metadata, names, shapes, and outputs for sample images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from warnings import catch_warnings, simplefilter

import numpy as np

from fovea_engines.heads.base import Head
from fovea_engines.heads.head_file import head_in_file
from fovea_engines.heads.metadata import (
    image_size,
    labels_from_metadata,
    task_from_metadata,
)
from fovea_engines.heads.recognition import (
    NOT_FINITE,
    NOT_RUN,
    TENSORS,
    UNSEEN,
    Recognition,
    Verdict,
    accept_family,
    explain_none,
    leave_open,
    nearest_of,
    outputs_text,
    reject_all,
)
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.heads.signature import (
    OTHERS,
    Fit,
    Signature,
    Strength,
    describe,
    image_layout,
    image_sides,
)
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

Observe = Callable[[str | None], Sequence[Mapping[str, Array]]]
"""Function that runs a model on sample images and returns its outputs [1, ...] for each image.

The argument is the family whose preprocessing is used. None means the most usual preprocessing.
"""


def recognise(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    family: str | None = None,
    observe: Observe | None = None,
    *,
    other_inputs: tuple[str, ...] = (),
    force: bool = False,
    named_by: str = "chosen by --head",
) -> Recognition:
    """Recognise a model by its tensors and metadata, and by its outputs for sample images.

    Args:
        inputs: inputs of the model, except the inputs in `other_inputs`.
        outputs: outputs of the model.
        metadata: metadata of the model.
        family: family that the user names, to choose between families that fit. With `TENSORS`, no
            family is accepted.
        observe: function that runs the model. Without it, only metadata, names and shapes are used.
        other_inputs: names of other inputs. A build fills them in.
        force: if True, accept the named family although the metadata or the model's output values
            contradict it. The family must still be able to decode the outputs.
        named_by: text for messages that describes how the user named the family.

    Raises:
        InvalidOption: the named family is unknown.
        UnsupportedModel: the model's outputs (shapes or values) exclude the named family.
    """
    check_family(family)
    if family == TENSORS:
        return reject_all(named_by, metadata)
    if head_in_file(family) is not None:
        # Ignore the exporter's metadata: the author of the head has defined the task and the
        # classes.
        metadata = {}
    if observe is not None:
        outputs = _fill_shapes(outputs, observe(None))
    signature = _signature(inputs, outputs, metadata, other_inputs)
    if isinstance(signature, str):
        if family is not None:
            raise UnsupportedModel(
                f"the model is not of family {family}: {signature}; leave --head out to serve its "
                "tensors"
            )
        return reject_all(signature, metadata)
    judge = _Judge(signature, observe)
    shown = outputs_text(outputs)
    if family is not None:
        return _judge_named(family, judge, shown, force=force, named_by=named_by)

    verdicts = tuple(sorted(map(judge, FAMILIES), key=lambda one: one.order))
    return _choose_verdict(verdicts, shown, metadata)


def _choose_verdict(
    verdicts: tuple[Verdict, ...], shown: str, metadata: Mapping[str, str]
) -> Recognition:
    """Return the recognition for the best verdict. If no verdict is good enough, reject all."""
    best = [one for one in verdicts if one.rank == verdicts[0].rank >= 0]
    if best and best[0].rank == Strength.ON_REQUEST and any(one.doubt for one in verdicts):
        # The best families fit any model. A family that is only doubted is more probable than
        # these.
        best = []
    if best and best[0].rank == Strength.ON_REQUEST:
        could = " or ".join(f"--head {one.family}" for one in best)
        reason = f"{shown} fits many kinds of models: give {could} if that is your model's family"
        if nearest := nearest_of(verdicts):
            reason += f"; the nearest families are {nearest}"
        return reject_all(reason, metadata, verdicts)
    if best and best[0].unseen and best[0].rank <= Strength.SHAPE:
        # The sample images gave no evidence. Therefore a rarer family with the same shapes cannot
        # be excluded, and the user must choose.
        best = [one for one in verdicts if one.rank > Strength.ON_REQUEST]
    if len(best) == 1:
        return accept_family(best[0], shown, metadata, verdicts)
    if best:
        return leave_open(best, shown, metadata, verdicts)
    doubted = " or ".join(f"--head {one.family}" for one in verdicts if one.doubt is not None)
    cure = f"; give --images that show objects of its classes, or choose {doubted}"
    why = explain_none(verdicts) + (cure if doubted else "")
    return reject_all(f"{shown}: {why}", metadata, verdicts)


def check_family(family: str | None) -> None:
    """Check the family that the user names.

    Raises:
        InvalidOption: there is no such family.
    """
    known = (*FAMILIES, TENSORS)
    if family is None or family == TENSORS or family in FAMILIES:
        return
    near = " or ".join(get_close_matches(family.lower(), known, 2))
    if near:
        raise InvalidOption(f"unknown head {family!r}; did you mean {near}?")
    raise InvalidOption(f"unknown head {family!r}; the heads are {', '.join(known)}")


class _Judge:
    """Tests whether families fit a model: its signature, and its outputs for sample images."""

    def __init__(self, signature: Signature, observe: Observe | None) -> None:
        self._signature = signature
        self.task, self.metadata = signature.task, signature.metadata
        self._observe = observe

    def __call__(self, family: str, *, named: bool = False) -> Verdict:
        head = FAMILIES[family]
        if self.task not in (None, head.task):
            return Verdict(family, against=OTHERS)
        fit = head.fit(self._signature)
        if isinstance(fit, str):
            return Verdict(family, against=fit)
        if self._observe is None:
            return Verdict(family, fit)
        if head.sized and self._signature.size is None:
            return Verdict(family, fit, unseen=NOT_RUN)
        opened = self._open(family, fit)
        seen = _seen(self._observe, family)
        sound = [outputs for outputs in seen if opened.unsound(outputs, 0) is None]
        if seen and not sound:
            return Verdict(family, fit, NOT_FINITE)
        doubt = None
        for outputs in sound:
            with np.errstate(all="ignore"), catch_warnings():
                # Suppress NumPy's warnings about arrays without a finite number.
                simplefilter("ignore", RuntimeWarning)
                reason = opened.contradiction(outputs)
                doubt = doubt or (None if fit.sure else opened.doubt(outputs))
            if reason is not None:
                return Verdict(family, fit, reason)
        if not seen:
            return Verdict(family, fit, unseen=NOT_RUN)
        unseen = "" if any(map(opened.has_evidence, sound)) else UNSEEN
        if named:
            return Verdict(family, fit, None, unseen, doubt)
        return Verdict(family, fit, fit.unsure or doubt, unseen, doubt)

    def fit_forced(self, family: str) -> Fit | str:
        """Return the fit of a family, without regard to metadata and output values.

        If the family cannot decode the outputs, return the reason.
        """
        fit = FAMILIES[family].fit(self._signature)
        if isinstance(fit, str):
            free = replace(self._signature, task=None, metadata={}, num_labels=None, forced=True)
            fit = FAMILIES[family].fit(free)
        if isinstance(fit, str) or self._observe is None:
            return fit
        try:
            opened = self._open(family, fit)
            for outputs in self._observe(family):
                with np.errstate(all="ignore"):
                    opened.decode(outputs, 0, PredictOptions(conf=0.0))
        except (UnsupportedModel, ValueError, IndexError, StopIteration) as error:
            return f"the family cannot decode its outputs ({error or type(error).__name__})"
        return fit

    def _open(self, family: str, fit: Fit) -> Head:
        return FAMILIES[family].open(
            fit.outputs, self._signature.size, fit.num_classes, fit.skeleton
        )


def _seen(observe: Observe, family: str) -> Sequence[Mapping[str, Array]]:
    """Return the outputs after a family's preprocessing, and after the most usual preprocessing.

    If the family is the wrong one, its preprocessing may lead to meaningless outputs. The second
    set of outputs is evidence in this case.
    """
    own, usual = observe(family), observe(None)
    return own if own is usual else (*own, *usual)


def _judge_named(
    family: str, judge: _Judge, shown: str, *, force: bool, named_by: str
) -> Recognition:
    verdict = judge(family, named=True)
    if verdict.against is None:
        return accept_family(verdict, f"{shown}, {named_by}", judge.metadata)
    task = FAMILIES[family].task
    other = judge.task not in (None, task)
    against = f"the metadata names the task {judge.task}" if other else verdict.against
    fit = judge.fit_forced(family)
    if force and isinstance(fit, Fit):
        forced = Verdict(family, fit, doubt=against)
        return accept_family(forced, f"{shown}, forced by --force-head", judge.metadata)
    # Do not suggest families that fit models of any kind.
    others = [one.family for one in map(judge, FAMILIES) if one.rank > Strength.ON_REQUEST]
    could = (
        f"it could be {' or '.join(others)}"
        if others
        else "no other family fits, so leave --head out to serve its tensors"
    )
    if isinstance(fit, Fit):
        images = "give --images that show objects of its classes, or " if verdict.fit else ""
        could += f"; {images}use --force-head to build it anyway"
    elif force:
        against += f", and {fit}" if fit != against else ""
    raise UnsupportedModel(f"the model is not of family {family}: {against}; {could} ({shown})")


def open_head(recognition: Recognition, inputs: Sequence[TensorSpec]) -> Head | None:
    """Return the head that decodes a recognised model. Without a family, return None.

    Raises:
        UnsupportedModel: the family is not installed here, or does not accept a dynamic input.
    """
    if recognition.family is None:
        return None
    head = FAMILIES.get(recognition.family)
    if head is None:
        cure = "install the package that added the head during the build"
        if "@" in recognition.family:
            cure = "the version has no head.py, so build the engine again"
        raise UnsupportedModel(f"the head {recognition.family!r} is not installed: {cure}")
    return head.open(
        recognition.outputs, _spatial(inputs[0]), recognition.num_classes, recognition.skeleton
    )


def _spatial(image: TensorSpec) -> tuple[int, int] | None:
    """Return (height, width) of an image input. If one of them is dynamic, return None."""
    sides = image_sides(image)
    return None if -1 in sides else sides


def _fill_shapes(
    outputs: Sequence[TensorSpec], seen: Sequence[Mapping[str, Array]]
) -> list[TensorSpec]:
    """Replace dynamic dimensions of outputs by the lengths in the outputs for sample images.

    A dimension stays dynamic if its length differs between the images.
    """
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
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    other_inputs: tuple[str, ...],
) -> Signature | str:
    """Return the facts about a model that identify its family.

    If no family can fit the model, return the reason.
    """
    task = task_from_metadata(metadata)
    if task is not None and task not in {head.task for head in FAMILIES.values()}:
        return f"the task {task!r} is not supported yet"
    if len(inputs) != 1 or image_layout(inputs[0]) is None:
        shown = ", ".join(describe(tensor) for tensor in inputs) or "nothing"
        return f"the model's input is {shown}, but a family needs one batch of colour images"
    labels = labels_from_metadata(metadata, None)
    return Signature(
        task=task,
        size=_spatial(inputs[0]) or image_size(metadata),
        outputs=tuple(outputs),
        metadata=metadata,
        num_labels=None if labels is None else len(labels),
        other_inputs=other_inputs,
    )
