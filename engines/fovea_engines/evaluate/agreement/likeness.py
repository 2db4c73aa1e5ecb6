"""Compares two engines of one graph on images on which little may be found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.evaluate.agreement.matching import Matching, match
from fovea_engines.evaluate.agreement.measure import CONF
from fovea_engines.evaluate.samples import Pixels, sample_images

# Detections compared per image, however low they score, down to where all is noise.
_AT_LEAST = 20
_NOISE = 0.001


def likeness(one: Engine, other: Engine) -> float:
    """Compare the answers of two engines to the photographs that ship with Fovea.

    `measure` is no use for this: on these photographs a detector may find nothing, and then any two
    engines would agree.

    Args:
        one: the engine that is known to be right.
        other: an engine of the same graph.

    Returns:
        Panoptic quality of the best detections; without detections, 1 minus the largest relative
        error of an output. 1 if all is equal, NaN if an output is NaN.
    """
    images = [pixels for _, pixels in sample_images(None)]
    matchings = [_match(one, other, pixels) for pixels in images if one.head is not None]
    if total := sum(matching.total for matching in matchings):
        return 1 - sum(matching.lost for matching in matchings) / total
    pairs = [(one.outputs_of(pixels), other.outputs_of(pixels)) for pixels in images]
    return min(
        _closeness([want[name] for want, _ in pairs], [have[name] for _, have in pairs])
        for name in pairs[0][0]
    )


def _match(one: Engine, other: Engine, pixels: Pixels) -> Matching:
    best = one.detect(pixels, PredictOptions(conf=_NOISE, max_det=_AT_LEAST)).scores
    conf = float(best.min(initial=CONF))
    margin = conf / 2
    options = PredictOptions(conf=conf - margin)
    return match(one.detect(pixels, options), other.detect(pixels, options), conf, margin)


def _closeness(want: Sequence[NDArray[Any]], have: Sequence[NDArray[Any]]) -> float:
    right, found = (np.stack(arrays).astype(np.float64) for arrays in (want, have))
    error, length = (float(np.linalg.norm(array)) for array in (found - right, right))
    return 1 - error / length if length else float(error == 0)
