"""Makes keypoints from the points of a model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.nms import FARTHEST


def keypoints(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return keypoints [n, k, 3], x y and a score, as `Detections` has them.

    Args:
        points: float32 [n, k, 2 or 3]. Those that a model does not score have a score of 1. Where
            one is broken, or farther out than `FARTHEST`, all three numbers are 0.
    """
    if points.shape[2] == 2:
        points = np.concatenate([points, np.ones_like(points[..., :1])], axis=2)
    # Each comparison is False for NaN.
    sound = (np.abs(points[..., :2]) < FARTHEST).all(axis=2) & (points[..., 2] < np.inf)
    return np.where(sound[..., None], points, 0).clip(max=[np.inf, np.inf, 1]).astype(np.float32)
