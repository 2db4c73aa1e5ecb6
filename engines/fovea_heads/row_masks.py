"""Decodes detectors with suppression inside, and a mask of probabilities for each row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.evidence import no_probability
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature
from fovea_engines.detect.masks import Masks, whole_masks
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_heads.mmdeploy import MmDeploy
from fovea_heads.suppressed import Suppressed
from fovea_heads.torchvision import Torchvision

_ON_THE_OBJECT = 0.5


@dataclass(frozen=True, slots=True)
class _RowMasks(Suppressed):
    """Decodes masks of the input's size, or else each of its own box."""

    task: ClassVar[str] = "segment"
    sized: ClassVar[bool] = True

    @abstractmethod
    def maps(self, outputs: Mapping[str, Array], row: int) -> Array:
        """Return the probabilities [k, h, w] of one image's rows."""

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the outputs of a detector, and masks."""
        masks = [tensor for tensor in signature.outputs if len(tensor.shape) == 4]
        if len(masks) != 1:
            return OTHERS
        others = tuple(tensor for tensor in signature.outputs if tensor not in masks)
        # The class's own `super` is gone, as dataclasses with slots are made anew.
        fit = super(_RowMasks, cls).fit(replace(signature, outputs=others))
        if isinstance(fit, str):
            return fit
        name = masks[0].name
        return replace(fit, outputs=(*fit.outputs, name), why=f"{fit.why}; {name} has masks")

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude masks that are no probabilities."""
        name = self.outputs[-1]
        reason = no_probability(outputs[name], name)
        return reason or super(_RowMasks, self).contradiction(outputs)

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield the columns of rows that are no padding, and their masks."""
        yield from super(_RowMasks, self).numbers(outputs, row)
        masks = self.maps(outputs, row)
        for number in np.flatnonzero(self.rows(outputs, row).scores > 0):
            yield f"output {self.outputs[-1]}", masks[number]

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        found, numbers = self.objects(self.rows(outputs, row), options)
        if options.mask == "none":
            return found
        assert self.size is not None, "it is sized"
        values = self.maps(outputs, row)[numbers].astype(np.float32) - _ON_THE_OBJECT
        if values.shape[1:] == self.size:
            return replace(found, masks=whole_masks(values, self.size))
        boxes = found.boxes.astype(np.float64)
        return replace(found, masks=Masks(tuple(values), boxes, boxes, self.size))


@dataclass(frozen=True, slots=True)
class TorchvisionSegment(_RowMasks, Torchvision):
    """Decodes Mask R-CNN: masks [k, 1, height, width] of the input's size."""

    family: ClassVar[str] = "torchvision-seg"

    def maps(self, outputs: Mapping[str, Array], row: int) -> Array:
        """Return those of the one image."""
        masks: Array = outputs[self.outputs[-1]][:, 0]
        return masks


@dataclass(frozen=True, slots=True)
class MmDeploySegment(_RowMasks, MmDeploy):
    """Decodes masks [batch, k, h, w]: Mask R-CNN's of the boxes, RTMDet-Ins' of the input."""

    family: ClassVar[str] = "mmdeploy-seg"

    def maps(self, outputs: Mapping[str, Array], row: int) -> Array:
        """Return those of one image of the batch."""
        masks: Array = outputs[self.outputs[-1]][row]
        return masks
