"""Checks whether the outputs for sample images contradict a way to decode them.

Each check gets columns of the output for one image. It returns a reason if the columns cannot have
the meaning that a head assumes, otherwise None. Reasons name a column by its index in the output.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = NDArray[Any]

# Tolerance for probabilities outside 0 to 1, caused by rounding, e.g. to float16.
_ROUNDING = 2e-3
# Largest median probability of a class over all boxes: most boxes show background.
_USUAL = 0.9
# Largest logarithm of a size in strides: exp(10) strides are wider than any image.
_LARGEST_LOG = 10.0
# Largest share of boxes whose centre may be outside the input.
_OUTSIDE = 0.1
# Tolerance for a sum of probabilities: a float16 softmax may differ from 1 by this much.
_SHARES = 0.02
_MAX_WRONG = 0.1
# Largest median of distances in strides. SCRFD has .5 to 2.2 in strides, and 9 to 35 in pixels.
_FAR = 5.0
# Medians of the best class probability of a box. With an objectness they are .15 (YOLOX) and .18
# (YOLOv5) after training. Without one they are 1e-6 (YOLOv8), or .06 before training.
_SURE_OF_BACKGROUND = 0.1
_UNSURE_OF_BACKGROUND = 0.08
# Largest coordinate as a fraction of the image: boxes may extend a little beyond its edge.
_LARGEST_FRACTION = 2.0
# Two measures of a segmenter: the median softmax of the best class, and the share of neighbours
# with the same class. Trained models have .68 to .99 and .99. With random weights both are .1 to
# .4.
_LIKELY, _SAME = 0.5, 0.9
# Number of rows from which a coordinate of boxes does not fall in every row by accident.
_ENOUGH_ROWS = 8


def no_probabilities(columns: Columns, first: int = 0) -> str | None:
    """Return a reason if one of the columns [boxes, n] goes beyond 0..1."""
    reasons = (no_probability(one, f"column {n}") for n, one in enumerate(columns.T, first))
    return next(filter(None, reasons), None)


def no_probability(values: Columns, name: str) -> str | None:
    """Return a reason if scores [boxes] go beyond 0..1."""
    values = np.asarray(values, np.float32)
    values = values[np.isfinite(values)]
    low, high = values.min(initial=0), values.max(initial=0)
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        return f"{name} is no probability: it goes from {low:.3g} to {high:.3g}"
    return None


def usual(columns: Columns, first: int = 0) -> str | None:
    """Return a reason if one of the probabilities [boxes, n] is high for most boxes."""
    if not len(columns):
        return None
    middle = np.median(np.asarray(columns, np.float32), axis=0)
    at = int(middle.argmax())
    if middle[at] > _USUAL:
        return f"column {first + at} is {middle[at]:.3g} for most boxes, so it is no class"
    return None


def no_class_ids(column: Columns, name: str) -> str | None:
    """Return a reason if class ids [boxes] are below -1 or not whole numbers; -1 means no class."""
    values = np.asarray(column, np.float32)
    values = values[np.isfinite(values)]
    wrong = values[(values < -1) | (values != values.round())]
    if len(wrong):
        return f"{name} holds no class ids: one is {wrong[0]:.3g}"
    return None


def lower_class_ids(column: Columns, first: int, name: str) -> str | None:
    """Return a reason if one of the class ids [boxes] is less than `first`."""
    wrong = column[column < first]
    return f"{name} has a class {wrong[0]:.3g}, and the first is {first}" if len(wrong) else None


def whole_numbers(columns: Columns, first: int = 0) -> str | None:
    """Return a reason if one of the probabilities [boxes, n] is always 0 or 1, like a class id."""
    values = np.asarray(columns, np.float32)
    only = (values == values.round()).all(axis=0) & values.any(axis=0)
    if only.any():
        return f"column {first + int(only.argmax())} has whole numbers only, so it is no class"
    return None


def no_logarithms(columns: Columns, first: int) -> str | None:
    """Return a reason if sizes [boxes, 2] are too large for logarithms."""
    values = np.asarray(columns, np.float32)
    middle = np.median(np.abs(values[np.isfinite(values)])) if values.size else 0
    if middle > _LARGEST_LOG:
        return f"columns {first} and {first + 1} are no logarithms: most are over {middle:.3g}"
    return None


def no_shares(columns: Columns) -> str | None:
    """Return a reason if the columns [boxes, n] of a box do not add up to 1, as a softmax does."""
    values = np.asarray(columns, np.float32)
    totals = values[np.isfinite(values).all(axis=1) & values.any(axis=1)].sum(axis=1)
    if len(totals) and np.abs(totals - 1).max() > _SHARES:
        return f"they do not add up to 1, as a softmax's do: one box has {totals.max():.3g}"
    return None


def no_logits(columns: Columns) -> str | None:
    """Return a reason if all columns [boxes, n] are within 0..1, as after a sigmoid or softmax."""
    values = np.asarray(columns, np.float32)
    values = values[np.isfinite(values)]
    if values.any() and values.min() >= 0 and values.max() <= 1:
        return f"they are not logits: all are from {values.min():.3g} to {values.max():.3g}"
    return None


def no_distances(columns: Columns) -> str | None:
    """Return a reason if most distances in strides [boxes, 4] are too large."""
    values = np.asarray(columns, np.float32)
    middle = np.median(values[np.isfinite(values)]) if np.isfinite(values).any() else 0
    if middle > _FAR:
        return f"distances are not in strides: most are over {middle:.3g}"
    return None


def far_off(columns: Columns) -> str | None:
    """Return a reason if most offsets in cells [boxes, 2] reach beyond the next cell."""
    values = np.asarray(columns, np.float32)
    values = np.abs(values[np.isfinite(values)])
    if len(values) and np.median(values) > 1:
        return f"they are not offsets in cells: most are over {np.median(values):.3g}"
    return None


def fractions(boxes: Columns, name: str = "boxes") -> str | None:
    """Return a reason if boxes in pixels [boxes, 4] are small, like fractions of the image."""
    values = np.asarray(boxes, np.float32)
    values = values[np.isfinite(values)]
    largest = np.abs(values).max(initial=0)
    # Zeros are padding, so they give no evidence.
    if 0 < largest <= _LARGEST_FRACTION:
        return f"{name} are no pixels: none is over {largest:.3g}"
    return None


def pixels(boxes: Columns, name: str = "boxes") -> str | None:
    """Return a reason if most numbers of boxes as fractions [boxes, 4] are far above 1."""
    values = np.asarray(boxes, np.float32)
    values = np.abs(values[np.isfinite(values)])
    middle = np.median(values) if len(values) else 0
    if middle > _LARGEST_FRACTION:
        return f"{name} are no fractions of the image: most numbers are over {middle:.3g}"
    return None


def turned(boxes: Columns, size: tuple[int, int]) -> str | None:
    """Return a reason if corners [boxes, 4] fit an input of (height, width) only with x, y swapped.

    A square input cannot show this.
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
    """Return a reason if the first of the class probabilities [boxes, n] is an objectness.

    Beside an objectness, classes have high probabilities on background, too.
    """
    objectness, best = _medians(classes)
    if best > _SURE_OF_BACKGROUND and objectness < best / 100:
        return f"column {first} is an objectness: most boxes have {best:.2g} in another column"
    return None


def no_objectness(columns: Columns, number: int) -> str | None:
    """Return a reason if the first of the columns [boxes, 1 + n] is not an objectness."""
    objectness, best = _medians(columns)
    if best < 10 * objectness:
        return f"column {number} is no objectness: for most boxes the others are no larger"
    return None


def unsure_beside_objectness(columns: Columns) -> str | None:
    """Return a reason if class probabilities are as low as without an objectness.

    They are low, too, if a model was trained for objects that the image does not show.

    Args:
        columns: [boxes, 1 + n], an objectness and n classes.
    """
    _, best = _medians(columns)
    if columns.shape[1] > 2 and best < _UNSURE_OF_BACKGROUND:
        return f"class scores are too low for a model with objectness: most are under {best:.2g}"
    return None


def _medians(columns: Columns) -> tuple[float, float]:
    """Return the medians over boxes: of the first column, and of the largest other column."""
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
        low = f"{wrong.mean():.0%} of the boxes have one below 0"
        return f"columns {first} and {first + 1} are not sizes: {low}"
    return None


def no_corners(boxes: Columns) -> str | None:
    """Return a reason if many boxes x1 y1 x2 y2 [boxes, 4] have x2 < x1 or y2 < y1."""
    values = finite_rows(boxes)
    wrong = (
        ((values[:, 2] < values[:, 0]) | (values[:, 3] < values[:, 1])).mean() if len(values) else 0
    )
    if wrong > _MAX_WRONG:
        return f"boxes are not corners: {wrong:.0%} have x2 < x1 or y2 < y1"
    return None


def ranks(columns: Columns, first: int = 0) -> str | None:
    """Return a reason if one of the columns [rows, n] falls from row to row, as scores do.

    Such a column cannot be a coordinate of boxes.
    """
    values = finite_rows(columns)
    if len(values) < _ENOUGH_ROWS:
        return None
    steps = np.diff(values, axis=0)
    ranked = (steps <= 0).all(axis=0) & ((steps < 0).mean(axis=0) > 0.5)
    if ranked.any():
        return f"column {first + int(ranked.argmax())} ranks the rows, so it is no side of a box"
    return None


def unranked(scores: Columns, name: str) -> str | None:
    """Return a reason if scores [rows] are not sorted, best first."""
    values = np.asarray(scores, np.float32)
    values = values[np.isfinite(values)]
    if (np.diff(values) > _ROUNDING).any():
        return f"{name} is no score: the rows are not ranked by it"
    return None


def no_class_scores(planes: Columns) -> str | None:
    """Return a reason if planes [classes, h, w] are not scores of the classes of pixels.

    For most pixels of a segmenter, one class is likelier than all others together, and neighbours
    have the same class. Planes of an image, or of features, have similar values in several planes.
    """
    values = np.asarray(planes, np.float32)
    if min(values.shape) < 2:
        return None
    best = values.max(axis=0)
    if values.min() < -_ROUNDING or best.max() > 1 + _ROUNDING:
        # The softmax of the best logit.
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
    """Return the rows of a table that have only finite numbers, as float32."""
    values = np.asarray(table, np.float32)
    return values[np.isfinite(values).all(axis=1)]
