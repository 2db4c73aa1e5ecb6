"""Checks whether the outputs for sample images contradict a way to decode them.

Each check gets columns of the output for one image. If the columns cannot have the meaning that a
head assumes, the check returns the reason as a text, otherwise None. A reason names a column by its
index in the output.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = NDArray[Any]

# Tolerance for probabilities below 0 or above 1, because of rounding, for example to float16.
_ROUNDING = 2e-3
# Largest median of a class's probability over all boxes. The true median is low, because most boxes
# show background.
_USUAL = 0.9
# Largest logarithm of a box's side in strides. exp(10) strides are wider than any image.
_LARGEST_LOG = 10.0
# Largest fraction of boxes with a centre outside the input.
_OUTSIDE = 0.1
# Tolerance for a sum of probabilities: a float16 softmax may differ from 1 by this much.
_SHARES = 0.02
_MAX_WRONG = 0.1
# Largest median of distances in strides. For SCRFD the median is .5 to 2.2 in strides. If the
# distances are in pixels, it is 9 to 35.
_FAR = 5.0
# Limits for the median, over all boxes, of the best class probability. In trained models with an
# objectness, this median is .15 (YOLOX) and .18 (YOLOv5). In models without an objectness, it is
# 1e-6 (YOLOv8), or .06 before training.
_SURE_OF_BACKGROUND = 0.1
_UNSURE_OF_BACKGROUND = 0.08
# Largest coordinate as a fraction of the image's side. Boxes may extend beyond the image's edge.
_LARGEST_FRACTION = 2.0
# Smallest values of two measures of a segmentation model: the median softmax of the best class, and
# the fraction of neighbouring pixels with the same class. In trained models they are .68 to .99,
# and .99. With random weights, both are .1 to .4.
_LIKELY, _SAME = 0.5, 0.9
# Smallest number of rows for this check. In fewer rows, a coordinate of boxes may by chance be
# sorted in descending order.
_ENOUGH_ROWS = 8


def no_probabilities(columns: Columns, first: int = 0) -> str | None:
    """Return a reason if one of the columns [boxes, n] has values outside 0..1."""
    reasons = (no_probability(one, f"column {n}") for n, one in enumerate(columns.T, first))
    return next(filter(None, reasons), None)


def no_probability(values: Columns, name: str) -> str | None:
    """Return a reason if some of the scores [boxes] are outside 0..1."""
    values = np.asarray(values, np.float32)
    values = values[np.isfinite(values)]
    low, high = values.min(initial=0), values.max(initial=0)
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        return f"{name} is not a probability: it ranges from {low:.3g} to {high:.3g}"
    return None


def usual(columns: Columns, first: int = 0) -> str | None:
    """Return a reason if one of the probabilities [boxes, n] is high for most boxes."""
    if not len(columns):
        return None
    middle = np.median(np.asarray(columns, np.float32), axis=0)
    at = int(middle.argmax())
    if middle[at] > _USUAL:
        return f"column {first + at} is {middle[at]:.3g} for most boxes, so it is not a class score"
    return None


def no_class_ids(column: Columns, name: str) -> str | None:
    """Return a reason if class ids [boxes] are below -1 or not whole numbers.

    An id of -1 is allowed: it means that the row has no class.
    """
    values = np.asarray(column, np.float32)
    values = values[np.isfinite(values)]
    wrong = values[(values < -1) | (values != values.round())]
    if len(wrong):
        return f"{name} does not contain class ids: one value is {wrong[0]:.3g}"
    return None


def lower_class_ids(column: Columns, first: int, name: str) -> str | None:
    """Return a reason if one of the class ids [boxes] is less than `first`."""
    wrong = column[column < first]
    return (
        (f"{name} has class {wrong[0]:.3g}, but the first class is {first}") if len(wrong) else None
    )


def whole_numbers(columns: Columns, first: int = 0) -> str | None:
    """Return a reason if one of the columns [boxes, n] only has the values 0 and 1.

    Such a column is a class id and not a probability.
    """
    values = np.asarray(columns, np.float32)
    only = (values == values.round()).all(axis=0) & values.any(axis=0)
    if only.any():
        return (
            f"column {first + int(only.argmax())} has only whole numbers, so it is not a class "
            "score"
        )
    return None


def no_logarithms(columns: Columns, first: int) -> str | None:
    """Return a reason if sizes [boxes, 2] are too large to be logarithms."""
    values = np.asarray(columns, np.float32)
    middle = np.median(np.abs(values[np.isfinite(values)])) if values.size else 0
    if middle > _LARGEST_LOG:
        return (
            f"columns {first} and {first + 1} are not logarithms: most values are over {middle:.3g}"
        )
    return None


def no_shares(columns: Columns) -> str | None:
    """Return a reason if the n columns of a box do not add up to 1, so that they are no softmax."""
    values = np.asarray(columns, np.float32)
    totals = values[np.isfinite(values).all(axis=1) & values.any(axis=1)].sum(axis=1)
    if len(totals) and np.abs(totals - 1).max() > _SHARES:
        return f"the values of a box add up to {totals.max():.3g}, but after a softmax the sum is 1"
    return None


def no_logits(columns: Columns) -> str | None:
    """Return a reason if all values [boxes, n] are within 0..1.

    Then the values are probabilities and not logits.
    """
    values = np.asarray(columns, np.float32)
    values = values[np.isfinite(values)]
    if values.any() and values.min() >= 0 and values.max() <= 1:
        return (
            f"all values are from {values.min():.3g} to {values.max():.3g}, so they are not logits"
        )
    return None


def no_distances(columns: Columns) -> str | None:
    """Return a reason if most of the distances [boxes, 4] are too large to be in strides."""
    values = np.asarray(columns, np.float32)
    middle = np.median(values[np.isfinite(values)]) if np.isfinite(values).any() else 0
    if middle > _FAR:
        return f"most distances are over {middle:.3g}, so they are not in strides"
    return None


def far_off(columns: Columns) -> str | None:
    """Return a reason if most of the offsets [boxes, 2], in cells, reach beyond the next cell."""
    values = np.asarray(columns, np.float32)
    values = np.abs(values[np.isfinite(values)])
    if len(values) and np.median(values) > 1:
        return f"most values are over {np.median(values):.3g}, so they are not offsets in cells"
    return None


def fractions(boxes: Columns, name: str = "boxes") -> str | None:
    """Return a reason if boxes [boxes, 4] are so small that they are fractions and not pixels."""
    values = np.asarray(boxes, np.float32)
    values = values[np.isfinite(values)]
    largest = np.abs(values).max(initial=0)
    # If all numbers are 0, the rows are padding, which proves nothing.
    if 0 < largest <= _LARGEST_FRACTION:
        return f"{name} are not in pixels: no value is over {largest:.3g}"
    return None


def pixels(boxes: Columns, name: str = "boxes") -> str | None:
    """Return a reason if most numbers of boxes [boxes, 4] are too large to be fractions."""
    values = np.asarray(boxes, np.float32)
    values = np.abs(values[np.isfinite(values)])
    middle = np.median(values) if len(values) else 0
    if middle > _LARGEST_FRACTION:
        return f"{name} are not fractions of the image: most values are over {middle:.3g}"
    return None


def turned(boxes: Columns, size: tuple[int, int]) -> str | None:
    """Return a reason if x and y of the corners [boxes, 4] are swapped.

    This is the case if boxes are inside an input of (height, width) pixels only after x and y are
    swapped. With a square input, the check finds nothing.
    """
    values = finite_rows(boxes)
    if not len(values):
        return None
    centres = (values[:, :2] + values[:, 2:]) / 2
    share = float((centres > size[::-1]).any(axis=1).mean())
    if share > _OUTSIDE and (centres <= size).all():
        return (
            f"{share:.0%} of the boxes are outside the input, but none of them if x and y are "
            "swapped"
        )
    return None


def objectness_first(classes: Columns, first: int) -> str | None:
    """Return a reason if the first of the columns [boxes, n] is an objectness and not a class.

    The first column is an objectness if it is low for most boxes and another column is high. In
    models with an objectness, classes also have high probabilities on background.
    """
    objectness, best = _medians(classes)
    if best > _SURE_OF_BACKGROUND and objectness < best / 100:
        return (
            f"column {first} is an objectness, not a class: most boxes have {best:.2g} in another "
            "column"
        )
    return None


def no_objectness(columns: Columns, number: int) -> str | None:
    """Return a reason if the first of the columns [boxes, 1 + n] is not an objectness."""
    objectness, best = _medians(columns)
    if best < 10 * objectness:
        return (
            f"column {number} is not an objectness: for most boxes, no class score is much higher"
        )
    return None


def unsure_beside_objectness(columns: Columns) -> str | None:
    """Return a reason if class probabilities are too low for a model with an objectness.

    The reason is uncertain: the probabilities may also be low because the image does not show
    objects of the model's classes.

    Args:
        columns: [boxes, 1 + n], the supposed objectness and n classes.
    """
    _, best = _medians(columns)
    if columns.shape[1] > 2 and best < _UNSURE_OF_BACKGROUND:
        return f"class scores are too low for a model with objectness: most are under {best:.2g}"
    return None


def _medians(columns: Columns) -> tuple[float, float]:
    """Return two medians over all boxes: of the first column, and of the largest other column."""
    values = np.asarray(columns, np.float32)
    values = values[np.isfinite(values).all(axis=1)]
    if not len(values) or values.shape[1] < 2:
        return 0.0, 0.0
    return float(np.median(values[:, 0])), float(np.median(values[:, 1:].max(axis=1)))


def no_sizes(columns: Columns, first: int) -> str | None:
    """Return a reason if many widths and heights [boxes, 2] are negative."""
    values = np.asarray(columns, np.float32)
    wrong = (values < 0).any(axis=1)
    if wrong.sum() > _MAX_WRONG * len(values):
        low = f"{wrong.mean():.0%} of the boxes have a negative value"
        return f"columns {first} and {first + 1} are not sizes: {low}"
    return None


def no_corners(boxes: Columns) -> str | None:
    """Return a reason if many boxes x1 y1 x2 y2 [boxes, 4] have x2 < x1 or y2 < y1."""
    values = finite_rows(boxes)
    wrong = (
        ((values[:, 2] < values[:, 0]) | (values[:, 3] < values[:, 1])).mean() if len(values) else 0
    )
    if wrong > _MAX_WRONG:
        return f"boxes are not corners x1 y1 x2 y2: {wrong:.0%} have x2 < x1 or y2 < y1"
    return None


def ranks(columns: Columns, first: int = 0) -> str | None:
    """Return why columns [rows, n] cannot be coordinates of boxes, or None if they can be.

    If a column is in descending order, it contains scores, and the rows are sorted by them.
    """
    values = finite_rows(columns)
    if len(values) < _ENOUGH_ROWS:
        return None
    steps = np.diff(values, axis=0)
    ranked = (steps <= 0).all(axis=0) & ((steps < 0).mean(axis=0) > 0.5)
    if ranked.any():
        return (
            f"column {first + int(ranked.argmax())} is sorted in descending order like a score, "
            "so it is not a coordinate of boxes"
        )
    return None


def unranked(scores: Columns, name: str) -> str | None:
    """Return a reason if the scores [rows] are not sorted in descending order."""
    values = np.asarray(scores, np.float32)
    values = values[np.isfinite(values)]
    if (np.diff(values) > _ROUNDING).any():
        return f"{name} is not a score: the rows are not sorted by it"
    return None


def no_class_scores(planes: Columns) -> str | None:
    """Return a reason if planes [classes, h, w] are not the class scores of pixels.

    In a segmentation model, most pixels have one class that is more probable than all other classes
    together, and neighbouring pixels have the same class. In the planes of an image or of features,
    several planes have similar values.
    """
    values = np.asarray(planes, np.float32)
    if min(values.shape) < 2:
        return None
    best = values.max(axis=0)
    if values.min() < -_ROUNDING or best.max() > 1 + _ROUNDING:
        # This is the softmax of the best class of each pixel.
        shares = 1 / np.exp(values - best).sum(axis=0)
    elif (no_shares(values.reshape(len(values), -1).T)) is None:
        shares = best
    else:
        return (
            "its channels are not class scores: the values are from 0 to 1, but do not add up to 1"
        )
    if (middle := np.median(shares)) < _LIKELY:
        return (
            "its channels are not class scores: for most pixels, the most probable class has only "
            f"{middle:.2g}"
        )
    ids = values.argmax(axis=0)
    if (same := float((ids[:, 1:] == ids[:, :-1]).mean())) < _SAME:
        return (
            f"its channels are not class scores: {1 - same:.0%} of neighbouring pixels have "
            "different classes"
        )
    return None


def finite_rows(table: Columns) -> NDArray[np.float32]:
    """Return the rows of a table that have only finite numbers, as float32."""
    values = np.asarray(table, np.float32)
    return values[np.isfinite(values).all(axis=1)]
