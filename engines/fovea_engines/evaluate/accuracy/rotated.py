"""Measures detectors of rotated boxes by COCO's rules, with the overlap of the rectangles."""

from __future__ import annotations

from typing import Any

import numpy as np
from faster_coco_eval import COCOeval_faster
from numpy.typing import NDArray

from fovea_engines.evaluate.agreement.overlap import rotated_iou


class RotatedJudge(COCOeval_faster):  # type: ignore[misc]
    """Judges annotations that have `rotated`, a row cx cy w h angle, beside their bbox."""

    def computeIoU(self, imgId: int, catId: int) -> list[float] | NDArray[np.float64]:  # noqa: N802, N803
        """Return the overlaps [found, objects] of one class on one image, the best found first."""
        objects: list[dict[str, Any]]
        found: list[dict[str, Any]]
        objects, found = (
            data.get_instances([imgId], [catId], True)[0][0]
            for data in (self.gt_dataset, self.dt_dataset)
        )
        if not objects or not found:
            return []
        found = sorted(found, key=lambda one: -one["score"])[: self.params.maxDets[-1]]
        return rotated_iou(
            *(np.array([one["rotated"] for one in each]) for each in (found, objects))
        )
