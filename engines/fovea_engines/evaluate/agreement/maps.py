"""Compares the maps that two models compute."""

from __future__ import annotations

import numpy as np

from fovea_engines.detect.finding import Finding
from fovea_engines.detect.maps import ClassMap, DepthMap, SoftMask


def shared(want: Finding, have: Finding) -> float | None:
    """Return what two maps of one image share, 0 to 1; None for what is no map.

    Of classes, it is the share of cells with the same one. Of masks, it is 1 less the mean absolute
    difference, and of depths 1 less that over the mean depth.
    """
    match want, have:
        case ClassMap(), ClassMap():
            return float((want.ids == have.ids).mean())
        case SoftMask(), SoftMask():
            return 1 - float(np.abs(want.values - have.values).mean())
        case DepthMap(), DepthMap():
            off = float(np.abs(want.values - have.values).mean())
            mean = float(np.abs(want.values).mean())
            return max(0.0, 1 - off / mean) if mean else float(off == 0)
    return None
