"""Defines what a detector answers for one labelled image."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from fovea_engines.results.detections import Detections
from fovea_engines.results.mask_encoding import RunLengths, run_lengths


@dataclass(frozen=True, slots=True, eq=False)
class CompactDetections:
    """Objects in an image, whose masks are run lengths: those of a whole dataset fit in memory.

    Attributes:
        found: in upright pixels, without its masks.
        masks: of each object; None without the task.
    """

    found: Detections
    masks: tuple[RunLengths, ...] | None = None

    @classmethod
    def of(cls, found: Detections) -> Self:
        """Return detections as an answer."""
        if found.masks is None:
            return cls(found)
        masks = tuple(run_lengths(one, found.masks.size) for one in found.masks.bitmaps())
        return cls(replace(found, masks=None), masks)

    @classmethod
    def with_masks(cls, found: Detections, masks: Iterable[RunLengths | None]) -> Self:
        """Return detections whose masks came over the network; one without a mask has none."""
        known = tuple(mask for mask in masks if mask is not None)
        return cls(found, known if known and len(known) == len(found) else None)
