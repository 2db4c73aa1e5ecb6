"""Finds what the numbers of a DETR's queries say against a reading of them; see `evidence`."""

from __future__ import annotations

import numpy as np

from fovea_engines.detect.heads.evidence import Columns, finite_rows, no_shares, pixels, ranks

# A trained DETR's boxes end at the edge of the image, but for some hundredths of its side.
_LARGEST_OVERHANG = 0.1
# Boxes of a trained model lie all over the image; without training they can all be the same.
_LEAST_SPREAD = 0.3
# Of fewer boxes all can be wide, so that their sizes exceed their centres.
_ENOUGH = 20
# Half of all queries are less sure of each class than this: they are mostly of nothing.
_USUAL_LOGIT = 2.2
# Of RT-DETR's boxes the four numbers differ by .4, of neighbours in a map by hundredths.
_LEAST_DIFFERENCE = 0.05
# Of so many columns that of "none" is the best or the next one for most queries, also for those
# that are sure of a class. Of RT-DETR's 80 the last never is, and in the middle it is the 23rd.
_MANY_COLUMNS = 10
_NEARLY_ALWAYS = 0.8
# Rounding, also to INT8, takes a sigmoid so far out of 0 to 1.
_SIGMOID = 0.01
# So few of a model's boxes may be wrong.
_MOST_WRONG = 0.1


def centred_fractions(boxes: Columns) -> str | None:
    """Exclude boxes, [boxes, 4], that are no centres and sizes as fractions of the image."""
    values = finite_rows(boxes)
    if (reason := pixels(values)) is not None or not len(values):
        return reason
    spread = np.ptp(values[:, :2], axis=0).min() > _LEAST_SPREAD
    if len(values) < _ENOUGH:
        # Of few boxes, as a model gives that has suppressed already, none is centred far outside.
        beyond = np.abs(values[:, :2] - 0.5) + values[:, 2:] / 2 > 0.5 + _LARGEST_OVERHANG
        if beyond.any(axis=1).sum() > _MOST_WRONG * len(values):
            return "boxes are no centres and sizes: they would reach far over the image's edge"
        return None
    if spread and (values[:, 2:] >= values[:, :2]).all():
        return "boxes are no centres and sizes: each has the second point beyond the first"
    return None


def beyond(boxes: Columns) -> str | None:
    """Exclude fractions, [boxes, 4], that come of a sigmoid and are beyond 0..1."""
    values = finite_rows(boxes)
    low, high = values.min(initial=0), values.max(initial=0)
    if low < -_SIGMOID or high > 1 + _SIGMOID:
        return f"boxes are no fractions of the image: they go from {low:.3g} to {high:.3g}"
    return None


def no_queries(rows: Columns) -> str | None:
    """Exclude rows, [rows, columns], that are ranked or padded, as those of an answer are.

    A query has numbers of its own, in no order.
    """
    values = finite_rows(rows)
    if len(values) < _ENOUGH or not values.any():
        return None
    if same := len(values) - len(np.unique(values, axis=0)):
        return f"its rows are no queries: {same} of {len(values)} repeat others, as padding does"
    whole = (values == values.round()).all(axis=0)
    if whole.any():
        return f"its rows are no queries: column {whole.argmax()} has whole numbers only"
    return ranks(values)


def neighbours(boxes: Columns) -> str | None:
    """Exclude centres and sizes, [boxes, 4], of which most have much the same number four times.

    So have the neighbouring places of a map.
    """
    values = finite_rows(boxes)
    values = values[values.any(axis=1)]
    if len(values) and (middle := np.median(np.ptp(values, axis=1))) < _LEAST_DIFFERENCE:
        return f"boxes are no centres and sizes: most have four numbers within {middle:.2g}"
    return None


def shares(columns: Columns) -> bool:
    """Return whether the columns, [rows, n], add up to 1 in every row, as those of a softmax do."""
    values = finite_rows(columns)
    return bool(values.any()) and no_shares(values) is None


def separate_classes(logits: Columns) -> str | None:
    """Exclude logits of a softmax, [queries, classes], of which the largest says "none".

    Where each class has a sigmoid, most queries are of no class, and say so of each. The logarithms
    of a softmax's probabilities are excluded, too.
    """
    values = finite_rows(logits)
    if values.max(initial=0) <= 0 and shares(np.exp(values)):
        return "they are log-probabilities of one softmax: exp() of each query's adds up to 1"
    middle = np.median(values.max(axis=1)) if len(values) else 0
    if middle > _USUAL_LOGIT:
        return f"most queries are sure of a class: their largest logit is over {middle:.3g}"
    return None


def none_last(logits: Columns) -> str | None:
    """Exclude logits of a sigmoid each, [queries, classes], whose last is always among the best."""
    values = finite_rows(logits)
    if values.shape[1] < _MANY_COLUMNS or not len(values):
        return None
    share = float(np.mean((values > values[:, -1:]).sum(axis=1) < 2))
    if share < _NEARLY_ALWAYS:
        return None
    return (
        f'the last class is "none": it is the best or the next one for {share:.0%} of the queries'
    )


def background_last(logits: Columns) -> str | None:
    """Exclude logits of a sigmoid each, [queries, classes]: a softmax ends in "none".

    That is the best class of most queries or nearly so, or at least one of them is sure. What is
    added to all logits of a query changes nothing in a softmax, so it alone says little.
    """
    values = finite_rows(logits)
    if not len(values) or none_last(values):
        return None
    best = values.max(axis=1)
    share = np.mean(values[:, -1] >= best)
    if share < 0.5 and np.median(best) < _USUAL_LOGIT:
        return f'the last class is not "none": it is the best of {share:.0%} of the queries'
    return None
