"""Compares two engines of one graph on images on which little may be found."""

from __future__ import annotations

from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.evaluate.agreement.matching import Matching, match
from fovea_engines.evaluate.agreement.measure import CONF, measure_outputs
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
        error of an output, 0 if one is NaN. 1 if all is equal.
    """
    images = list(sample_images(None))
    matchings = [_match(one, other, pixels) for _, pixels in images if one.head is not None]
    if total := sum(matching.total for matching in matchings):
        return 1 - sum(matching.lost for matching in matchings) / total
    return measure_outputs(
        (name, one.outputs_of(pixels), other.outputs_of(pixels)) for name, pixels in images
    ).quality


def _match(one: Engine, other: Engine, pixels: Pixels) -> Matching:
    best = one.detect(pixels, PredictOptions(conf=_NOISE, max_det=_AT_LEAST)).scores
    conf = float(best.min(initial=CONF))
    margin = conf / 2
    options = PredictOptions(conf=conf - margin)
    return match(one.detect(pixels, options), other.detect(pixels, options), conf, margin)
