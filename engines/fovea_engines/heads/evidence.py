"""Finds what a model's numbers on sample images say against a reading of them.

Each check gets columns of one image's output, names a column by its number in the output, and
returns the reason why they cannot be what a head takes them for; None if they can.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = NDArray[Any]

# Rounding, also to float16, takes a probability so far out of 0 to 1.
_ROUNDING = 2e-3
# Half of all boxes are surer of no class than this: a detector's boxes are mostly background.
_USUAL = 0.9
# Sizes of boxes as logarithms of strides stay under this: exp(10) strides are wider than any image.
_LARGEST_LOG = 10.0
# So few of a detector's boxes have their centre outside the input.
_OUTSIDE = 0.1
# The sum of a softmax in float16 is so far off 1.
_SHARES = 0.02
_MAX_WRONG = 0.1
# The median of SCRFD's distances is .5 to 2.2 strides, and 9 to 35 in pixels.
_FAR = 5.0
# The best class beside an objectness, for most boxes: .15 (YOLOX) and .18 (YOLOv5) in trained ones;
# without objectness 1e-6 in YOLOv8, and .06 before training.
_SURE_OF_BACKGROUND = 0.1
_UNSURE_OF_BACKGROUND = 0.08
# Boxes that are fractions of the image may reach a little over its edge.
_LARGEST_FRACTION = 2.0
# The softmax of the likeliest class, of half of the pixels, and the share of neighbours of the same
# class: .68 to .99, and .99, of a trained segmenter; .1 to .4 of weights that nobody trained.
_LIKELY, _SAME = 0.5, 0.9
# Of so many rows none of the four numbers of a box goes down all the way by accident.
_ENOUGH_ROWS = 8


def no_probabilities(columns: Columns, first: int = 0) -> str | None:
    """Exclude columns, [boxes, n], of which one goes beyond 0..1."""
    reasons = (no_probability(one, f"column {n}") for n, one in enumerate(columns.T, first))
    return next(filter(None, reasons), None)


def no_probability(values: Columns, name: str) -> str | None:
    """Exclude scores, [boxes], that go beyond 0..1."""
    values = np.asarray(values, np.float32)
    values = values[np.isfinite(values)]
    low, high = values.min(initial=0), values.max(initial=0)
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        return f"{name} is no probability: it goes from {low:.3g} to {high:.3g}"
    return None


def usual(columns: Columns, first: int = 0) -> str | None:
    """Exclude probabilities, [boxes, n], of which one is high for most boxes."""
    if not len(columns):
        return None
    middle = np.median(np.asarray(columns, np.float32), axis=0)
    at = int(middle.argmax())
    if middle[at] > _USUAL:
        return f"column {first + at} is {middle[at]:.3g} for most boxes, so it is no class"
    return None


def no_class_ids(column: Columns, name: str) -> str | None:
    """Exclude a column of class ids, [boxes], that are negative or no whole numbers; -1 is none."""
    values = np.asarray(column, np.float32)
    values = values[np.isfinite(values)]
    wrong = values[(values < -1) | (values != values.round())]
    if len(wrong):
        return f"{name} holds no class ids: one is {wrong[0]:.3g}"
    return None


def lower_class_ids(column: Columns, first: int, name: str) -> str | None:
    """Exclude class ids, [boxes], of which one is less than the `first` there is."""
    wrong = column[column < first]
    return f"{name} has a class {wrong[0]:.3g}, and the first is {first}" if len(wrong) else None


def whole_numbers(columns: Columns, first: int = 0) -> str | None:
    """Exclude probabilities, [boxes, n], of which one is only ever 0 or 1, as two class ids are."""
    values = np.asarray(columns, np.float32)
    only = (values == values.round()).all(axis=0) & values.any(axis=0)
    if only.any():
        return f"column {first + int(only.argmax())} has whole numbers only, so it is no class"
    return None


def no_logarithms(columns: Columns, first: int) -> str | None:
    """Exclude sizes, [boxes, 2], that are too large for logarithms."""
    values = np.asarray(columns, np.float32)
    middle = np.median(np.abs(values[np.isfinite(values)])) if values.size else 0
    if middle > _LARGEST_LOG:
        return f"columns {first} and {first + 1} are no logarithms: most are over {middle:.3g}"
    return None


def no_shares(columns: Columns) -> str | None:
    """Exclude columns, [boxes, n], that do not add up to 1 as those of a softmax do."""
    values = np.asarray(columns, np.float32)
    totals = values[np.isfinite(values).all(axis=1) & values.any(axis=1)].sum(axis=1)
    if len(totals) and np.abs(totals - 1).max() > _SHARES:
        return f"they do not add up to 1, as a softmax's do: one box has {totals.max():.3g}"
    return None


def no_logits(columns: Columns) -> str | None:
    """Exclude columns, [boxes, n], that all lie within 0..1, as after a sigmoid or a softmax."""
    values = np.asarray(columns, np.float32)
    values = values[np.isfinite(values)]
    if values.any() and values.min() >= 0 and values.max() <= 1:
        return f"they are no logits: all are from {values.min():.3g} to {values.max():.3g}"
    return None


def no_distances(columns: Columns) -> str | None:
    """Exclude distances in strides, [boxes, 4], that are too far for most boxes."""
    values = np.asarray(columns, np.float32)
    middle = np.median(values[np.isfinite(values)]) if np.isfinite(values).any() else 0
    if middle > _FAR:
        return f"distances are in no strides: most are over {middle:.3g}"
    return None


def far_off(columns: Columns) -> str | None:
    """Exclude places in cells, [boxes, 2], of which most are farther off than the next cell."""
    values = np.asarray(columns, np.float32)
    values = np.abs(values[np.isfinite(values)])
    if len(values) and np.median(values) > 1:
        return f"they are no places in cells: most are over {np.median(values):.3g}"
    return None


def fractions(boxes: Columns, name: str = "boxes") -> str | None:
    """Exclude boxes in pixels, [boxes, 4], that all lie within 0..1, as fractions of the image."""
    values = np.asarray(boxes, np.float32)
    values = values[np.isfinite(values)]
    largest = np.abs(values).max(initial=0)
    # Zeros are padding, and say nothing.
    if 0 < largest <= _LARGEST_FRACTION:
        return f"{name} are no pixels: none is over {largest:.3g}"
    return None


def pixels(boxes: Columns, name: str = "boxes") -> str | None:
    """Exclude boxes as fractions of the image, [boxes, 4], of which most lie far outside 0..1."""
    values = np.asarray(boxes, np.float32)
    values = np.abs(values[np.isfinite(values)])
    middle = np.median(values) if len(values) else 0
    if middle > _LARGEST_FRACTION:
        return f"{name} are no fractions of the image: most numbers are over {middle:.3g}"
    return None


def turned(boxes: Columns, size: tuple[int, int]) -> str | None:
    """Exclude corners, [boxes, 4], that fit an input of (height, width) only with x and y swapped.

    A square input shows nothing of it.
    """
    values = finite_rows(boxes)
    if not len(values):
        return None
    centres = (values[:, :2] + values[:, 2:]) / 2
    share = float((centres > size[::-1]).any(axis=1).mean())
    if share > _OUTSIDE and (centres <= size).all():
        return f"{share:.0%} of the boxes are outside the input, and with x and y swapped none is"
    return None


def objectness_first(classes: Columns, first: int) -> str | None:
    """Exclude class probabilities, [boxes, n], of which the first is an objectness.

    Classes beside an objectness are sure of something also where nothing is.
    """
    objectness, best = _medians(classes)
    if best > _SURE_OF_BACKGROUND and objectness < best / 100:
        return f"column {first} is an objectness: most boxes are {best:.2g} sure of another column"
    return None


def no_objectness(columns: Columns, number: int) -> str | None:
    """Exclude an objectness and classes, [boxes, 1 + n], that are as classes without it."""
    objectness, best = _medians(columns)
    if best < 10 * objectness:
        return f"column {number} is no objectness: for most boxes the others are no larger"
    return None


def unsure_beside_objectness(columns: Columns) -> str | None:
    """Doubt an objectness and classes, [boxes, 1 + n], that are unsure, as those without it are.

    So are they also where a model was trained for a domain of which the image shows nothing.
    """
    _, best = _medians(columns)
    if columns.shape[1] > 2 and best < _UNSURE_OF_BACKGROUND:
        return f"classes are too unsure to stand beside an objectness: most are under {best:.2g}"
    return None


def _medians(columns: Columns) -> tuple[float, float]:
    """Return the medians over boxes of the first column, and of the largest of the others."""
    values = np.asarray(columns, np.float32)
    values = values[np.isfinite(values).all(axis=1)]
    if not len(values) or values.shape[1] < 2:
        return 0.0, 0.0
    return float(np.median(values[:, 0])), float(np.median(values[:, 1:].max(axis=1)))


def no_sizes(columns: Columns, first: int) -> str | None:
    """Exclude widths and heights, [boxes, 2], of which many are negative."""
    values = np.asarray(columns, np.float32)
    wrong = (values < 0).any(axis=1)
    if wrong.sum() > _MAX_WRONG * len(values):
        low = f"{wrong.mean():.0%} of the boxes have one below 0"
        return f"columns {first} and {first + 1} are no sizes: {low}"
    return None


def no_corners(boxes: Columns) -> str | None:
    """Exclude corners x1 y1 x2 y2, [boxes, 4], of which many are the wrong way round."""
    values = finite_rows(boxes)
    wrong = (
        ((values[:, 2] < values[:, 0]) | (values[:, 3] < values[:, 1])).mean() if len(values) else 0
    )
    if wrong > _MAX_WRONG:
        return f"boxes are no corners: {wrong:.0%} have the second above or left of the first"
    return None


def ranks(columns: Columns, first: int = 0) -> str | None:
    """Exclude columns of boxes, [rows, n], of which one goes down from row to row as scores do."""
    values = finite_rows(columns)
    if len(values) < _ENOUGH_ROWS:
        return None
    steps = np.diff(values, axis=0)
    ranked = (steps <= 0).all(axis=0) & ((steps < 0).mean(axis=0) > 0.5)
    if ranked.any():
        return f"column {first + int(ranked.argmax())} ranks the rows, so it is no side of a box"
    return None


def unranked(scores: Columns, name: str) -> str | None:
    """Exclude scores, [rows], of an answer whose rows have the best first, if one is better."""
    values = np.asarray(scores, np.float32)
    values = values[np.isfinite(values)]
    if (np.diff(values) > _ROUNDING).any():
        return f"{name} is no score: the rows are not ranked by it"
    return None


def no_class_scores(planes: Columns) -> str | None:
    """Doubt planes, [classes, h, w], that are no scores of the classes of pixels.

    Of most pixels a class is likelier than all others together, and neighbours are of one class.
    Those of a picture, or of features, have much the same number in several planes.
    """
    values = np.asarray(planes, np.float32)
    if min(values.shape) < 2:
        return None
    best = values.max(axis=0)
    if values.min() < -_ROUNDING or best.max() > 1 + _ROUNDING:
        # A softmax of logits.
        shares = 1 / np.exp(values - best).sum(axis=0)
    elif (no_shares(values.reshape(len(values), -1).T)) is None:
        shares = best
    else:
        return "its channels are no classes: they lie within 0 to 1 and do not add up to 1"
    if (middle := np.median(shares)) < _LIKELY:
        return f"its channels are no classes: at most pixels the likeliest has {middle:.2g}"
    ids = values.argmax(axis=0)
    if (same := float((ids[:, 1:] == ids[:, :-1]).mean())) < _SAME:
        return f"its channels are no classes: {1 - same:.0%} of the pixels differ from the next"
    return None


def finite_rows(table: Columns) -> NDArray[np.float32]:
    """Return the rows of a table that are finite throughout, as float32."""
    values = np.asarray(table, np.float32)
    return values[np.isfinite(values).all(axis=1)]
