"""Decodes models from detection frameworks whose graphs suppress duplicates.

The outputs are rows of detections, and for some models masks.

    mmdeploy          MMDetection by MMDeploy: [n, k, 5] x1 y1 x2 y2 score, and integers [n, k]
    mmdeploy-seg      the outputs of mmdeploy, and masks [n, k, h, w]
    torchvision       Faster R-CNN, RetinaNet, SSD, FCOS: boxes [k, 4], scores [k], int64 labels [k]
    torchvision-seg   Mask R-CNN: the outputs of torchvision, and masks [k, 1, h, w]
    paddle            PaddleDetection by paddle2onnx: [k, 6] class score x1 y1 x2 y2 of all images,
                      and int32 [n], the number of rows of each image

Formats: the docs of MMDeploy, "How to support new models", and its mmdet ONNX Runtime tests; the
docs of torchvision.models.detection; PaddleDetection's deploy/EXPORT_MODEL.md and the operator
multiclass_nms3.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fovea_engines.heads.base import MMDETECTION, STRETCHED, Head
from fovea_engines.heads.evidence import no_probability
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.heads.suppressed import Columns, Rows, Suppressed
from fovea_engines.results.detections import Detections
from fovea_engines.results.masks import Masks, whole_masks
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array

_ON_THE_OBJECT = 0.5


class MmDeploy(Suppressed):
    """Decodes rows of detections. A row with the score 0 or the class -1 is padding."""

    family = "mmdeploy"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "anchor": "top-left",
        "rounding": "nearest",
        **MMDETECTION,
    }
    guessed = (
        "most configurations of MMDetection have this mean and std, and pad at the right and bottom"
    )
    variants = ("mean-std", "stretched")

    @property
    def fields(self) -> tuple[str, str]:
        """Names for messages: the score column of the first output, and the class ids."""
        dets, labels = self.outputs[:2]
        return f"column 4 of {dets}", labels

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for an output of boxes and scores, and for an output of integer labels."""
        if len(signature.outputs) != 2:
            return OTHERS
        labels, dets = sorted(signature.outputs, key=lambda tensor: len(tensor.shape))
        if len(labels.shape) != 2 or len(dets.shape) != 3 or not labels.dtype.startswith("int"):
            return OTHERS
        if dets.shape[2] not in (-1, 5) or not dets.dtype.startswith("float"):
            return OTHERS
        named = (dets.name, labels.name) == ("dets", "labels")
        strength = Strength.NAMES if named else Strength.SHAPE
        why = "rows of x1 y1 x2 y2 score, and a class id each"
        return Fit((dets.name, labels.name), signature.num_labels, why, strength)

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return the rows of one image."""
        dets, labels = (outputs[name][row] for name in self.outputs[:2])
        return Rows(dets[:, :4], dets[:, 4], labels)


class Torchvision(Suppressed):
    """Decodes the rows of one image.

    Class ids are the ids of the training. Label 0 is the background, and the model never returns
    it. The graph resizes and normalises images itself. It pads the images of a batch at the right
    and bottom, with a colour near the mean.
    """

    family = "torchvision"
    preprocess: ClassVar[Mapping[str, Any]] = {"anchor": "top-left"}
    guessed = (
        "SSD and SSDlite stretch images, but torchvision's other detectors keep their aspect ratio"
    )
    variants = ("stretched",)
    resizes = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for three outputs without a batch axis."""
        if len(signature.outputs) != 3:
            return OTHERS
        if signature.other_inputs:
            return f"torchvision's models have no input {signature.other_inputs[0]}"
        by_kind = {(len(one.shape), one.dtype[:5]): one for one in signature.outputs}
        found = [by_kind.get(kind) for kind in ((2, "float"), (1, "float"), (1, "int64"))]
        boxes, scores, labels = found
        if boxes is None or scores is None or labels is None or boxes.shape[1] not in (-1, 4):
            return OTHERS
        names = boxes.name, scores.name, labels.name
        named = names == ("boxes", "scores", "labels")
        strength = Strength.NAMES if named else Strength.SHAPE
        return Fit(names, signature.num_labels, "rows of one image: box, score, label", strength)

    def doubt(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if a row is background, which torchvision never returns.
        """
        rows = self.rows(outputs, 0)
        if np.any((rows.class_ids == 0) & (rows.scores > 0)):
            return f"{self.fields[1]} has class 0, which torchvision uses for the background"
        return super().doubt(outputs)

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return the boxes of the image. These models take one image, so `row` is 0."""
        boxes, scores, labels = (outputs[name] for name in self.outputs[:3])
        return Rows(boxes, scores, labels)


class Paddle(Columns):
    """Decodes rows of detections. A row with the class -1 is padding.

    The graph divides boxes by the value of the input `scale_factor`. A build sets this value to 1,
    so boxes are in pixels of the model's input.
    """

    family = "paddle"
    preprocess = STRETCHED
    guessed = "PicoDet and PP-YOLOE use ImageNet's mean and std, but PP-YOLOE+ and RT-DETR do not"
    variants = ("0-to-1",)
    box = 2
    score = 1
    class_id = 0

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for an output of rows, and for an output with the number of rows per image."""
        by_kind = {(len(one.shape), one.dtype[:3]): one for one in signature.outputs}
        rows, count = by_kind.get((2, "flo")), by_kind.get((1, "int"))
        if len(signature.outputs) != 2 or rows is None or count is None:
            return OTHERS
        if rows.shape[1] not in (-1, 6):
            return f"a row has {rows.shape[1]} numbers, not class score x1 y1 x2 y2"
        why = "rows of class, score, x1 y1 x2 y2, and their number"
        return Fit((rows.name, count.name), signature.num_labels, why)

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return the rows of one image. They follow the rows of the images before it."""
        table, counts = (outputs[name] for name in self.outputs)
        first, last = (int(counts[:images].clip(0).sum()) for images in (row, row + 1))
        return self.split(table[first:last])


class _RowMasks(Suppressed):
    """Decodes masks. Each mask covers either the whole input or only the box of its object."""

    task = "segment"
    sized = True

    @abstractmethod
    def maps(self, outputs: Mapping[str, Array], row: int) -> Array:
        """Return the probabilities [k, h, w] of the masks of one image."""

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the outputs of a detector, and for masks."""
        masks = [tensor for tensor in signature.outputs if len(tensor.shape) == 4]
        if len(masks) != 1:
            return OTHERS
        others = tuple(tensor for tensor in signature.outputs if tensor not in masks)
        fit = super().fit(replace(signature, outputs=others))
        if isinstance(fit, str):
            return fit
        name = masks[0].name
        return replace(fit, outputs=(*fit.outputs, name), why=f"{fit.why}; {name} has masks")

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if masks are not probabilities, or if the check of the detector finds
        a reason.
        """
        name = self.outputs[-1]
        reason = no_probability(outputs[name], name)
        return reason or super().contradiction(outputs)

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield the columns and the masks of the rows that are not padding."""
        yield from super().numbers(outputs, row)
        masks = self.maps(outputs, row)
        for number in np.flatnonzero(self.rows(outputs, row).scores > 0):
            yield f"output {self.outputs[-1]}", masks[number]

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        found, numbers = self.objects(self.rows(outputs, row), options)
        if options.mask == "none":
            return found
        assert self.size is not None, "it is sized"
        values = self.maps(outputs, row)[numbers].astype(np.float32) - _ON_THE_OBJECT
        if values.shape[1:] == self.size:
            return replace(found, masks=whole_masks(values, self.size))
        boxes = found.boxes.astype(np.float64)
        return replace(found, masks=Masks(tuple(values), boxes, boxes, self.size))


class TorchvisionSegment(_RowMasks, Torchvision):
    """Decodes Mask R-CNN: masks [k, 1, height, width] that cover the input."""

    family = "torchvision-seg"

    def maps(self, outputs: Mapping[str, Array], row: int) -> Array:
        """Return the masks of the image. These models take one image, so `row` is 0."""
        masks: Array = outputs[self.outputs[-1]][:, 0]
        return masks


class MmDeploySegment(_RowMasks, MmDeploy):
    """Decodes masks [batch, k, h, w].

    The masks of Mask R-CNN cover the boxes, and the masks of RTMDet-Ins cover the input.
    """

    family = "mmdeploy-seg"

    def maps(self, outputs: Mapping[str, Array], row: int) -> Array:
        """Return the masks of one image of the batch."""
        masks: Array = outputs[self.outputs[-1]][row]
        return masks


HEADS: tuple[type[Head], ...] = (
    MmDeploy,
    MmDeploySegment,
    Torchvision,
    TorchvisionSegment,
    Paddle,
)
