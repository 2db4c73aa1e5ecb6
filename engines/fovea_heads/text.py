"""Decodes text detection: how surely each pixel is of a line of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import IMAGENET, Head
from fovea_engines.detect.heads.evidence import no_probability
from fovea_engines.detect.heads.signature import Fit, Signature
from fovea_engines.detect.nms import choose, take
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.rotated import bounds, regular
from fovea_engines.session import Array
from fovea_heads.saliency import one_channel

# As in PaddleOCR's and RapidOCR's programs: a pixel of text, the least side of a line, and most
# lines of an image.
_TEXT = 0.3
_LEAST_SIDE = 3
_MOST_LINES = 1000
# Networks are trained on lines that are shrunk, by their area over their length, times this.
_SHRUNK = 1.6

Rectangle = tuple[tuple[float, float], tuple[float, float], float]
"""Of OpenCV: centre, sides and angle in degrees."""


class PpOcrDetection(Head):
    """Decodes probabilities [batch, 1, h, w] of PP-OCR's detectors and other DB networks.

    Follows DB (Liao et al., arXiv 1911.08947): every connected piece of text is a rectangle, which
    is grown by as much as lines were shrunk in training. It is no `Detector`: a pixel more or less
    moves a rectangle, so that engines are compared by their maps.
    """

    family = "ppocr-det"
    task = "text"
    labels = ("text",)
    # As PaddleOCR trains: beside grey, or with another mean, many photographs are one large text.
    preprocess: ClassVar[Mapping[str, Any]] = {
        "anchor": "top-left",
        "pad": 0,
        "channels": "BGR",
        **IMAGENET,
    }
    guessed = "PaddleOCR has ImageNet's mean and std and RapidOCR .5, both in BGR"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for a map of one channel."""
        fit = one_channel(signature)
        return fit if isinstance(fit, str) else replace(fit, num_classes=1)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude numbers that are no probabilities."""
        return no_probability(outputs[self.outputs[0]].ravel(), self.outputs[0])

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's lines of text, which are not suppressed."""
        values = outputs[self.outputs[0]][row, 0].astype(np.float32, copy=False)
        found = [each for each in _pieces(values > _TEXT) if min(each[1]) >= _LEAST_SIDE]
        scores = np.array([_mean(values, each) for each in found], np.float32)
        table = [(*centre, *sides, angle) for centre, sides, angle in found]
        rotated = np.array(table, np.float32).reshape(-1, 5)
        rotated[:, 4] = np.radians(rotated[:, 4])
        width, height = rotated[:, 2:3], rotated[:, 3:4]
        # Round corners, as of PaddleOCR's polygons, have this rectangle around them, too.
        rotated[:, 2:4] += _SHRUNK * width * height / (width + height)
        boxes, ids = bounds(rotated), np.zeros(len(rotated), np.int32)
        kept = choose(boxes, scores, ids, options, suppress=False)
        return replace(take(boxes, scores, ids, kept), rotated=regular(rotated[kept]))


def _pieces(text: NDArray[np.bool_]) -> list[Rectangle]:
    """Return the smallest rectangles around the largest connected pieces of a map."""
    # OpenCV joins the middles of outermost pixels. Dilated by one to the right and down, these are
    # the corners of the piece itself.
    grown = cv2.dilate(text.astype(np.uint8), np.ones((2, 2), np.uint8))
    outlines, _ = cv2.findContours(grown, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    largest = sorted(outlines, key=cv2.contourArea, reverse=True)[:_MOST_LINES]
    return [cv2.minAreaRect(each) for each in largest]  # type: ignore[misc]


def _mean(values: NDArray[np.float32], rectangle: Rectangle) -> float:
    """Return the mean of a map inside a rectangle."""
    points = cv2.boxPoints(rectangle)
    edge = np.array(values.shape[::-1]) - 1
    left, top = np.floor(points.min(axis=0)).astype(int).clip(0, edge)
    right, bottom = np.ceil(points.max(axis=0)).astype(int).clip(0, edge)
    window = values[top : bottom + 1, left : right + 1]
    inside = np.zeros(window.shape, np.uint8)
    cv2.fillPoly(inside, [(points - (left, top)).astype(np.int32)], 1)
    return cv2.mean(window, inside)[0]
