"""Recognises a model's family: by shapes first, then by names and metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.heads.metadata import image_size, labels_from_metadata
from fovea_engines.detect.heads.registry import FAMILIES
from fovea_engines.detect.heads.signature import Fit, Signature, describe, image_layout, image_sides
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class Recognition:
    """Result of recognising a model's head.

    Attributes:
        family: name in `FAMILIES`; None serves tensors only.
        reason: evidence for the family, or against every family.
        task: "detect" with a family; else the metadata's task, or "tensors".
    """

    family: str | None
    reason: str
    task: str
    num_classes: int | None = None


def recognise(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    family: str | None = None,
) -> Recognition:
    """Recognise a model by its tensors and metadata.

    A `family` that the user names decides between families that fit the shapes. UnsupportedModel
    if it is unknown or contradicts the shapes.
    """
    if family is not None and family not in FAMILIES:
        raise UnsupportedModel(f"no family {family!r}; there are {', '.join(FAMILIES)}")
    fits: dict[str, Fit] = {}
    signature = _signature(inputs, outputs, metadata)
    if isinstance(signature, str):
        against = signature
    else:
        verdicts = {name: head.fit(signature) for name, head in FAMILIES.items()}
        fits = {name: fit for name, fit in verdicts.items() if isinstance(fit, Fit)}
        against = "; ".join(
            f"not {n}: {why}" for n, why in verdicts.items() if isinstance(why, str)
        )
        against = f"{describe(signature.output)} is {against}"

    if family is not None:
        if family not in fits:
            could = f"it could be {', '.join(fits)}" if fits else "no family fits: leave it out"
            raise UnsupportedModel(f"the model is not of family {family}; {could} ({against})")
        chosen, evidence = family, f"chosen by --head: {fits[family].why}"
    else:
        sure = [name for name, fit in fits.items() if fit.sure] or list(fits)
        if len(sure) != 1:
            open_question = f"the shapes fit {' and '.join(sure)} alike: choose one with --family"
            return _tensors(open_question if sure else against, metadata)
        chosen, evidence = sure[0], fits[sure[0]].why
        if (twin := fits[chosen].twin) is not None:
            question = f"{evidence}, but this is also the shape of {twin}"
            return _tensors(f"{question}: if it is {chosen}, say so with --family", metadata)
    assert isinstance(signature, Signature)
    return Recognition(
        family=chosen,
        reason=f"{describe(signature.output)}: {evidence}",
        task=FAMILIES[chosen].task,
        num_classes=fits[chosen].num_classes,
    )


def open_head(
    recognition: Recognition,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> Head | None:
    """Return the head that decodes a recognised model; None without a family.

    Inputs and outputs are the session's: a runtime may rename those of the model's file. A dynamic
    input is an UnsupportedModel to some families.
    """
    if recognition.family is None:
        return None
    [output] = _rank_3(outputs)
    return FAMILIES[recognition.family].open(output.name, _spatial(inputs[0]))


def _rank_3(outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    return [tensor for tensor in outputs if len(tensor.shape) == 3]


def _tensors(reason: str, metadata: Mapping[str, str]) -> Recognition:
    task = metadata.get("task", "")
    return Recognition(None, f"{reason}: serves tensors", task if task.isalnum() else "tensors")


def _spatial(image: TensorSpec) -> tuple[int, int] | None:
    """Return (height, width) of an image input; None when either is dynamic."""
    sides = image_sides(image)
    return None if -1 in sides else sides


def _signature(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> Signature | str:
    """Return the facts that identify a family, or the reason why no family fits."""
    task = "pose" if "kpt_shape" in metadata else metadata.get("task", "detect")
    if task != "detect":
        return f"task {task!r} is not decoded yet"
    if len(inputs) != 1 or image_layout(inputs[0]) is None:
        shown = ", ".join(describe(tensor) for tensor in inputs)
        return f"input {shown} is not one batch of colour images"
    shown = ", ".join(describe(tensor) for tensor in outputs)
    boxes = _rank_3(outputs)
    if len(boxes) != 1:
        return f"no single output of three dimensions, which a detector has, in {shown}"
    # YOLOv5 can also output its raw levels, with five dimensions; they are ignored.
    if any(len(tensor.shape) not in (3, 5) for tensor in outputs):
        return f"a second output (mask prototypes have four dimensions), in {shown}"
    if not boxes[0].dtype.startswith("float"):
        return f"{shown} is of {boxes[0].dtype}, not float"
    labels = labels_from_metadata(metadata, None)
    end_to_end = metadata.get("end2end")
    return Signature(
        size=_spatial(inputs[0]) or image_size(metadata),
        output=boxes[0],
        num_labels=None if labels is None else len(labels),
        end_to_end=None if end_to_end is None else end_to_end.lower() == "true",
        exporter_metadata="names" in metadata or "stride" in metadata,
    )
