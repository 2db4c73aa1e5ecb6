"""Decodes text detectors (the positions of lines), and text recognition (the characters of a line).

    ppocr-det    PP-OCR and other DB networks: probability that a pixel is text, [n, 1, h, w]
    ctc          PP-OCR: probabilities [n, steps, characters]; column 0 means "no character"
    ctc-logits   PP-OCR without the softmax: logits [n, steps, characters]
    lprnet       LPRNet, for licence plates: logits [n, characters, steps]; the last character
                 means "no character"

Text detection follows DB (Liao et al., arXiv 1911.08947). The rectangle around every connected
region of text is enlarged, because lines were shrunk in the training. Text recognition follows CTC
(Graves et al., 2006). The best character of each step is taken, and repeated characters count once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import IMAGENET, Head, softmax
from fovea_engines.heads.evidence import no_logits, no_probability
from fovea_engines.heads.maps import one_channel
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.results.detections import Detections
from fovea_engines.results.nms import choose, take
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.reading import ReadText
from fovea_engines.results.rotated import bounds, regular
from fovea_engines.session import Array
from fovea_preprocess.text import counted

# Smallest probability of a text pixel, smallest side of a line in pixels, and largest number of
# lines in an image. PaddleOCR and RapidOCR use the same values.
_TEXT = 0.3
_MIN_SIDE = 3
_MAX_LINES = 1000
# Factor for enlarging the rectangles of lines, because lines were shrunk in the training. Each side
# moves outwards by this factor times the area divided by the perimeter.
_SHRUNK = 1.6
# Tolerance for a sum of probabilities: a float16 softmax may differ from 1 by this much.
_ROUNDING = 0.02

Rectangle = tuple[tuple[float, float], tuple[float, float], float]
"""A rotated rectangle of OpenCV: the centre, the two sides, and the angle in degrees."""


class PpOcrDetection(Head):
    """Decodes probabilities of text pixels into lines.

    The class does not extend `Detector`, so that engines are compared by their maps and not by
    their boxes. A single pixel of text more or less changes a rectangle.
    """

    family = "ppocr-det"
    task = "text"
    labels = ("text",)
    # PaddleOCR trains with this preprocessing. With grey padding or a different mean, the models
    # find one large text on many photographs.
    preprocess: ClassVar[Mapping[str, Any]] = {
        "anchor": "top-left",
        "pad": 0,
        "channels": "BGR",
        **IMAGENET,
    }
    guessed = "PaddleOCR uses ImageNet's mean and std, RapidOCR uses .5 for both, and both use BGR"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for a map of one channel."""
        fit = one_channel(signature)
        return fit if isinstance(fit, str) else replace(fit, num_classes=1)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return a reason against the family if numbers are not probabilities."""
        return no_probability(outputs[self.outputs[0]].ravel(), self.outputs[0])

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return the lines of text in one image. They need no suppression."""
        values = outputs[self.outputs[0]][row, 0].astype(np.float32, copy=False)
        found = [each for each in _pieces(values > _TEXT) if min(each[1]) >= _MIN_SIDE]
        scores = np.array([_mean(values, each) for each in found], np.float32)
        table = [(*centre, *sides, angle) for centre, sides, angle in found]
        rotated = np.array(table, np.float32).reshape(-1, 5)
        rotated[:, 4] = np.radians(rotated[:, 4])
        width, height = rotated[:, 2:3], rotated[:, 3:4]
        # PaddleOCR enlarges the polygon of a line and takes the rectangle around it. Enlarging the
        # rectangle directly has the same result.
        rotated[:, 2:4] += _SHRUNK * width * height / (width + height)
        boxes, ids = bounds(rotated), np.zeros(len(rotated), np.int32)
        kept = choose(boxes, scores, ids, options, suppress=False)
        return replace(take(boxes, scores, ids, kept), rotated=regular(rotated[kept]))


class Ctc(Head):
    """Decodes the characters of a line.

    Attributes:
        axis: index of the dimension of the characters.
        blank_last: True if the last column stands for "no character"; False if it is the first.
        logits: True if the softmax is not part of the model.
    """

    task = "read"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "anchor": "top-left",
        "pad": 127,
        "channels": "BGR",
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
    }
    guessed = (
        "PaddleOCR pads lines at the right and uses BGR with values from -1 to 1, but other "
        "models may not"
    )
    axis: ClassVar[int] = 2
    blank_last: ClassVar[bool] = False
    logits: ClassVar[bool] = False

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output with a column for each character and for "no character"."""
        if len(signature.outputs) != 1 or len(signature.outputs[0].shape) != 3:
            return OTHERS
        [output] = signature.outputs
        if not output.dtype.startswith("float") or (columns := output.shape[cls.axis]) < 2:
            return OTHERS
        characters = columns - 1
        why = f"{counted(columns, 'column')}: the characters, and one for no character"
        fit = Fit((output.name,), characters, why, Strength.ON_REQUEST)
        if (named := signature.num_labels) is not None:
            # The names may lack one character: PaddleOCR adds a space to the characters of the
            # file.
            if named not in (characters, characters - 1):
                return (
                    f"one of {counted(columns, 'column')} is for no character, so --labels or the "
                    f"metadata must name {characters} characters, but they name {named}"
                )
            fit = replace(fit, num_classes=named)
        if signature.task is not None:
            return replace(fit, strength=Strength.METADATA, why=f"{why}; the task is read")
        if "character" in signature.metadata and named is not None:
            why += "; the metadata has a dictionary"
            return replace(fit, strength=Strength.METADATA, why=why)
        return fit

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if the outputs are not probabilities, or, for a head of logits, not
        logits.
        """
        if self.logits:
            return no_logits(outputs[self.outputs[0]])
        numbers = outputs[self.outputs[0]][0].astype(np.float32)
        if numbers.min() < -_ROUNDING:
            return f"its numbers are not probabilities: the lowest is {numbers.min():.3g}"
        sums = numbers.sum(axis=self.axis - 1)
        if np.abs(sums - 1).max() > _ROUNDING:
            return f"the probabilities of a step add up to {sums.max():.3g} instead of 1"
        return None

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> ReadText:
        """Return the text of one image."""
        numbers = outputs[self.outputs[0]][row].astype(np.float32)
        steps = numbers if self.axis == 2 else numbers.T
        steps = softmax(steps) if self.logits else steps
        best = steps.argmax(axis=1)
        blank = steps.shape[1] - 1 if self.blank_last else 0
        kept = (best != blank) & np.concatenate([[True], best[1:] != best[:-1]])
        ids = best[kept] - (0 if self.blank_last else 1)
        return ReadText(ids.astype(np.int32), steps[kept, best[kept]])


def _pieces(text: NDArray[np.bool_]) -> list[Rectangle]:
    """Return the smallest rectangles around the largest connected regions of text pixels."""
    # OpenCV's contours go through the middles of the outermost pixels. After a dilation by one
    # pixel to the right and down, these positions are the corners of the region.
    grown = cv2.dilate(text.astype(np.uint8), np.ones((2, 2), np.uint8))
    outlines, _ = cv2.findContours(grown, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    largest = sorted(outlines, key=cv2.contourArea, reverse=True)[:_MAX_LINES]
    return [cv2.minAreaRect(each) for each in largest]  # type: ignore[misc]


def _mean(values: NDArray[np.float32], rectangle: Rectangle) -> float:
    """Return the mean of a map's values inside a rectangle."""
    points = cv2.boxPoints(rectangle)
    edge = np.array(values.shape[::-1]) - 1
    left, top = np.floor(points.min(axis=0)).astype(int).clip(0, edge)
    right, bottom = np.ceil(points.max(axis=0)).astype(int).clip(0, edge)
    window = values[top : bottom + 1, left : right + 1]
    inside = np.zeros(window.shape, np.uint8)
    cv2.fillPoly(inside, [(points - (left, top)).astype(np.int32)], 1)
    return cv2.mean(window, inside)[0]


HEADS: tuple[type[Head], ...] = (
    PpOcrDetection,
    Ctc.as_family("ctc"),
    Ctc.as_family("ctc-logits", logits=True),
    # LPRNet stretches plates to 24 x 94 in BGR, with mean 127.5 and std 128.
    Ctc.as_family(
        "lprnet",
        logits=True,
        axis=1,
        blank_last=True,
        preprocess={
            "fit": "stretch",
            "channels": "BGR",
            "scale": 1.0,
            "mean": (127.5, 127.5, 127.5),
            "std": (128.0, 128.0, 128.0),
        },
        guessed=(
            "LPRNet stretches plates and uses BGR with values from -1 to 1, but other models may "
            "not"
        ),
    ),
)
