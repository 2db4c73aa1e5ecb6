"""Decodes the queries of a DETR: logits of classes, and boxes as fractions of the input.

A query is a row of the output that may describe an object. The families are in `detr` and `rfdetr`.
The functions that check queries return a reason or None, as in `fovea_engines.heads.evidence`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import Detector, corners
from fovea_engines.heads.evidence import (
    Columns,
    finite_rows,
    no_logits,
    no_shares,
    pixels,
    ranks,
)
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.results.detections import Detections
from fovea_engines.results.masks import whole_masks
from fovea_engines.results.nms import choose, take
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.text import counted

MAX_QUERIES = 1000
"""Largest number of queries. DETRs have 50 to 900 queries. More rows are the cells of a grid."""

COCO_IDS = 91
"""Number of columns of a model whose class ids are COCO's category ids.

These ids have gaps: only 80 of the 91 columns are classes with a name.
"""

_ROUNDING = 1e-3
_MIN, _SUREST = 1e-37, 1 - 1e-7
"""Smallest and largest result of a sigmoid in float32 that is not 0 or 1."""

# Largest distance by which boxes may extend beyond the image's edge, as a fraction of the image's
# side. Boxes of trained models rarely extend further.
_LARGEST_OVERHANG = 0.1
# Smallest range of the centres, as a fraction of the image's side. Trained models have boxes in all
# parts of the image. The boxes of an untrained model may all be equal, which proves nothing.
_MIN_SPREAD = 0.3
# Smallest number of boxes for this check. If there are fewer boxes, all of them may by chance be
# larger than the coordinates of their centres.
_ENOUGH = 20
# Largest median of the queries' best logits. The true median is low, because most queries find no
# object.
_USUAL_LOGIT = 2.2
# Smallest median difference between the four numbers of a box. For RT-DETR it is .4. If the output
# is a map, neighbouring values differ by only a few hundredths.
_MIN_DIFFERENCE = 0.05
# Smallest number of columns for `none_last`. With so many columns, the class "none" ranks first or
# second for most queries, even for queries that have found an object. An ordinary last class does
# not: the median rank of the last of RT-DETR's 80 classes is 23.
_MANY_COLUMNS = 10
_NEARLY_ALWAYS = 0.8
# Tolerance for results of a sigmoid below 0 or above 1, because of rounding, for example to INT8.
_SIGMOID = 0.01
# Largest fraction of a model's boxes that may fail a check.
_MAX_WRONG = 0.1


class Queries(Detector):
    """Decodes logits [batch, queries, classes] and boxes cx cy w h, 0 to 1, [batch, queries, 4].

    Families of the task "segment" also have mask logits [batch, queries, h, w]. Each mask covers
    the whole input. Queries have no duplicates, so the options `iou` and `agnostic` have no effect.

    Attributes:
        names: pairs of names that exporters give to the outputs of logits and boxes.
        more: names of the other outputs.
        first: index of the first class column.
        after: number of columns after the class columns.
    """

    sized = True
    names: ClassVar[tuple[tuple[str, str], ...]]
    more: ClassVar[tuple[str, ...]] = ()
    first: ClassVar[int] = 0
    after: ClassVar[int] = 0

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for logits and boxes, by name and by shape."""
        by_name = {tensor.name: tensor for tensor in signature.outputs}
        pair = next((pair for pair in cls.names if by_name.keys() >= set(pair)), None)
        if pair is None:
            return cls._suggest_names(signature)
        logits, boxes = (by_name[name] for name in pair)
        if len(logits.shape) != 3 or len(boxes.shape) != 3 or boxes.shape[2] not in (4, -1):
            return OTHERS
        if not (logits.dtype.startswith("float") and boxes.dtype.startswith("float")):
            return OTHERS
        if not by_name.keys() >= set(cls.more):
            return OTHERS
        if more := sorted(by_name.keys() - {*pair, *cls.more}):
            return f"the model has other outputs, too: {' and '.join(more)}"
        names = *pair, *cls.more
        rows = {logits.shape[1], boxes.shape[1]} - {-1}
        if len(rows) > 1:
            return f"the logits have {logits.shape[1]} rows, but the boxes have {boxes.shape[1]}"
        if max(rows, default=0) > MAX_QUERIES:
            return f"the family has at most {MAX_QUERIES} queries, but the model has {max(rows)}"
        columns, others = logits.shape[2], cls.first + cls.after
        if (columns - others, signature.num_labels) == (COCO_IDS, 80):
            why = "boxes, and logits of COCO's 91 category ids, which do not match the 80 names"
            return Fit(names, COCO_IDS, why, Strength.NAMES)
        if isinstance(count := signature.count_classes(columns, others), str):
            return count
        return Fit(
            names,
            count,
            f"boxes and logits of {counted(count, 'class')}, by the names of the outputs",
            Strength.NAMES,
        )

    @classmethod
    def _suggest_names(cls, signature: Signature) -> str:
        """Return a reason that suggests to rename outputs if only their names do not fit."""
        flat = [one.shape for one in signature.outputs if len(one.shape) == 3]
        rows = {shape[1] for shape in flat}
        others = len(signature.outputs) - len(flat)
        if (len(flat), len(rows), others) != (2, 1, len(cls.more)) or max(rows) > MAX_QUERIES:
            return OTHERS
        if all(shape[2] != 4 for shape in flat):
            return OTHERS
        named = " and ".join((*cls.names[0], *cls.more))
        return (
            f"the family needs outputs with the names {named} (`fovea edit --rename OLD=NEW` "
            "renames them)"
        )

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if logits are outside their valid range, or boxes are not cx cy w h
        as fractions of the input.
        """
        logits, boxes = (outputs[name][0] for name in self.outputs[:2])
        if (reason := no_logits(logits)) is not None:
            return f"{self.outputs[0]}: {reason}"
        return centred_fractions(boxes)

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        found, queries = self.objects(outputs, row, options)
        if self.task != "segment" or options.mask == "none":
            return found
        assert self.size is not None, "it is sized"
        logits = outputs[self.outputs[2]][row][queries]
        return replace(found, masks=whole_masks(logits, self.size))

    @np.errstate(over="ignore", invalid="ignore")
    def objects(
        self, outputs: Mapping[str, Array], row: int, options: PredictOptions
    ) -> tuple[Detections, NDArray[np.intp]]:
        """Return the detections of one image, and the index of each detection's query."""
        logits, boxes = (outputs[name][row] for name in self.outputs[:2])
        query, class_ids, scores = self.scores(logits.astype(np.float32, copy=False), options)
        assert self.size is not None, "it is sized"
        scale = np.array(self.size[::-1] * 2, np.float32)
        few = corners(boxes[query].astype(np.float32, copy=False) * scale)
        kept = choose(few, scores, class_ids, options, suppress=False)
        return take(few, scores, class_ids, kept), query[kept]

    @abstractmethod
    def scores(
        self, logits: NDArray[np.float32], options: PredictOptions
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
        """Return the query, class id and score of each candidate, in the order of queries."""


class SeparateQueries(Queries):
    """Decodes queries with a sigmoid for each class. A query may have several classes."""

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if most queries have a high logit, or if `Queries` finds a reason.
        """
        logits = outputs[self.outputs[0]][0]
        return separate_classes(logits) or super().contradiction(outputs)

    def scores(
        self, logits: NDArray[np.float32], options: PredictOptions
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
        """Return the best pairs of query and class. `Queries.scores` describes the arrays.

        A query may occur with several classes, as in the exporters' own code. The sigmoid is
        computed only for the returned pairs.
        """
        classes = logits[:, self.first : logits.shape[1] - self.after]
        conf = options.conf
        least = math.log(max(conf, _MIN)) - math.log1p(-min(conf, _SUREST)) - _ROUNDING
        passing = (classes >= least) & (classes < np.inf)
        if options.classes is not None:
            passing &= np.isin(np.arange(classes.shape[1]), options.classes)
        query, class_ids = np.nonzero(passing)
        found = classes[query, class_ids]
        if len(found) > options.max_det:
            best = found >= np.partition(found, -options.max_det)[-options.max_det]
            query, class_ids, found = query[best], class_ids[best], found[best]
        return query, class_ids, np.reciprocal(1 + np.exp(-found))


def centred_fractions(boxes: Columns) -> str | None:
    """Return a reason if boxes [boxes, 4] are not cx cy w h as fractions of the image."""
    values = finite_rows(boxes)
    if (reason := pixels(values)) is not None or not len(values):
        return reason
    spread = np.ptp(values[:, :2], axis=0).min() > _MIN_SPREAD
    if len(values) < _ENOUGH:
        # Check how far boxes extend beyond the image. This detects wrong units in models with
        # suppression, which return only few boxes.
        beyond = np.abs(values[:, :2] - 0.5) + values[:, 2:] / 2 > 0.5 + _LARGEST_OVERHANG
        if beyond.any(axis=1).sum() > _MAX_WRONG * len(values):
            return "boxes are not centres and sizes: they would extend far beyond the image"
        return None
    if spread and (values[:, 2:] >= values[:, :2]).all():
        return "boxes are corners, not centres and sizes: all have x2 >= x1 and y2 >= y1"
    return None


def beyond(boxes: Columns) -> str | None:
    """Return a reason if numbers [boxes, 4] are outside 0..1, so that they are not a sigmoid."""
    values = finite_rows(boxes)
    low, high = values.min(initial=0), values.max(initial=0)
    if low < -_SIGMOID or high > 1 + _SIGMOID:
        return f"boxes are not fractions of the image: they range from {low:.3g} to {high:.3g}"
    return None


def no_queries(rows: Columns) -> str | None:
    """Return a reason if rows [rows, columns] are sorted by score, or padded with equal rows.

    Such rows are results after post-processing. Queries are not sorted, and their numbers differ.
    """
    values = finite_rows(rows)
    if len(values) < _ENOUGH or not values.any():
        return None
    if same := len(values) - len(np.unique(values, axis=0)):
        return (
            f"its rows are not queries: {same} of {len(values)} are copies of other rows, like "
            "padding"
        )
    whole = (values == values.round()).all(axis=0)
    if whole.any():
        return f"its rows are not queries: column {whole.argmax()} has only whole numbers"
    return ranks(values)


def neighbours(boxes: Columns) -> str | None:
    """Return a reason if the four numbers of most boxes [boxes, 4] are nearly equal.

    Then the numbers are neighbouring values of a map, and not boxes.
    """
    values = finite_rows(boxes)
    values = values[values.any(axis=1)]
    if len(values) and (middle := np.median(np.ptp(values, axis=1))) < _MIN_DIFFERENCE:
        return (
            "boxes are not centres and sizes: for most boxes, the four numbers differ by at most "
            f"{middle:.2g}"
        )
    return None


def shares(columns: Columns) -> bool:
    """Return whether the columns [rows, n] of every row add up to 1, as in a softmax."""
    values = finite_rows(columns)
    return bool(values.any()) and no_shares(values) is None


def separate_classes(logits: Columns) -> str | None:
    """Return a reason if logits [queries, classes] belong to a softmax, with "none" as a class.

    In models with a sigmoid for each class, most queries have low logits for all classes. The
    function also returns a reason if the values are logarithms of a softmax's probabilities.
    """
    values = finite_rows(logits)
    if values.max(initial=0) <= 0 and shares(np.exp(values)):
        return "the logits are logarithms of a softmax: their exp() adds up to 1 for each query"
    middle = np.median(values.max(axis=1)) if len(values) else 0
    if middle > _USUAL_LOGIT:
        return (
            f"most queries have a logit over {middle:.3g}, which is too high for a sigmoid for "
            "each class"
        )
    return None


def none_last(logits: Columns) -> str | None:
    """Return a reason if the last class of the logits [queries, classes] is probably "none".

    This is the case if the last logit is the largest or the second largest for nearly all queries.
    """
    values = finite_rows(logits)
    if values.shape[1] < _MANY_COLUMNS or not len(values):
        return None
    share = float(np.mean((values > values[:, -1:]).sum(axis=1) < 2))
    if share < _NEARLY_ALWAYS:
        return None
    return (
        f'the last class is "none": it is the best or second-best class for {share:.0%} of the '
        "queries"
    )


def background_last(logits: Columns) -> str | None:
    """Return a reason if logits [queries, classes] are not a softmax that ends in "none".

    In such a softmax, "none" is the best or nearly the best class of most queries, or at least one
    class has a high logit. A high logit alone proves little, because a softmax does not change if a
    constant is added to all logits of a query.
    """
    values = finite_rows(logits)
    if not len(values) or none_last(values):
        return None
    best = values.max(axis=1)
    share = np.mean(values[:, -1] >= best)
    if share < 0.5 and np.median(best) < _USUAL_LOGIT:
        return (
            f'the last class is not "none": it is the best class for only {share:.0%} of the '
            "queries"
        )
    return None
