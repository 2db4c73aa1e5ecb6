"""How alike two engines of one graph are, on images on which little may be found."""

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

# So many are compared on each image, however low they score; down to where all is noise.
_AT_LEAST = 20
_NOISE = 0.001


def likeness(one: Engine, other: Engine) -> float:
    """Compare what two engines make of the photographs that ship with Fovea.

    Not as `measure` does, which asks what a detector finds: on these photographs that may be
    nothing, and any two engines would agree.

    Args:
        one: that is right.
        other: of the same graph.

    Returns:
        Panoptic quality of the best detections; where there are none 1 minus the relative error of
        the output that is furthest off. 1 when all is the same; no number where an output is none.
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
