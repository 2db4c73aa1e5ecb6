"""Decodes the queries of a DETR: logits of classes, and boxes as fractions of the input."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import Detector, corners
from fovea_engines.detect.heads.evidence import no_logits
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.nms import choose, take
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_heads.query_evidence import centred_fractions, separate_classes
from fovea_preprocess.plural import counted

MOST_QUERIES = 1000
"""DETRs have 50 to 900 queries; more rows are a grid."""

COCO_IDS = 91
"""COCO's category ids go up to 90 with gaps, so LibreYOLO's 80 names are not those of columns."""

_ROUNDING = 1e-3
_LEAST, _SUREST = 1e-37, 1 - 1e-7
"""The nearest to 0 and 1 that a sigmoid in float32 comes."""


@dataclass(frozen=True, slots=True)
class Queries(Detector):
    """Decodes logits [batch, queries, classes] and boxes cx cy w h, 0 to 1, [batch, queries, 4].

    Queries do not double each other, so `iou` and `agnostic` have no effect.

    Attributes:
        names: pairs of names that exporters give to the logits and the boxes.
        more: names of the outputs beside these.
        first: column of the first class.
        after: number of columns after those of the classes.
    """

    sized: ClassVar[bool] = True
    names: ClassVar[tuple[tuple[str, str], ...]]
    more: ClassVar[tuple[str, ...]] = ()
    first: ClassVar[int] = 0
    after: ClassVar[int] = 0

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for both outputs, by name and by shape."""
        by_name = {tensor.name: tensor for tensor in signature.outputs}
        pair = next((pair for pair in cls.names if by_name.keys() >= set(pair)), None)
        if pair is None:
            return cls._renamed(signature)
        logits, boxes = (by_name[name] for name in pair)
        if len(logits.shape) != 3 or len(boxes.shape) != 3 or boxes.shape[2] not in (4, -1):
            return OTHERS
        if not (logits.dtype.startswith("float") and boxes.dtype.startswith("float")):
            return OTHERS
        if not by_name.keys() >= set(cls.more):
            return OTHERS
        if more := sorted(by_name.keys() - {*pair, *cls.more}):
            return f"the model also has {' and '.join(more)}"
        names = *pair, *cls.more
        rows = {logits.shape[1], boxes.shape[1]} - {-1}
        if len(rows) > 1:
            return f"{logits.shape[1]} rows of logits, and {boxes.shape[1]} of boxes"
        if max(rows, default=0) > MOST_QUERIES:
            return f"it has {MOST_QUERIES} queries at most, and the model {max(rows)}"
        columns, others = logits.shape[2], cls.first + cls.after
        if (columns - others, signature.num_labels) == (COCO_IDS, 80):
            why = "logits of COCO's 91 category ids, which the 80 names do not fit, and boxes"
            return Fit(names, COCO_IDS, why, Strength.NAMES)
        if isinstance(count := signature.count_classes(columns, others), str):
            return count
        return Fit(
            names,
            count,
            f"logits of {counted(count, 'class')}, and boxes, by their names",
            Strength.NAMES,
        )

    @classmethod
    def _renamed(cls, signature: Signature) -> str:
        """Say what outputs of the right shapes, but other names, should be called."""
        flat = [one.shape for one in signature.outputs if len(one.shape) == 3]
        rows = {shape[1] for shape in flat}
        others = len(signature.outputs) - len(flat)
        if (len(flat), len(rows), others) != (2, 1, len(cls.more)) or max(rows) > MOST_QUERIES:
            return OTHERS
        if all(shape[2] != 4 for shape in flat):
            return OTHERS
        named = " and ".join((*cls.names[0], *cls.more))
        return f"its outputs are named {named} (`fovea edit --rename OLD=NEW` renames them)"

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude what is no logit, and boxes that are no centres and sizes as fractions."""
        logits, boxes = (outputs[name][0] for name in self.outputs[:2])
        if (reason := no_logits(logits)) is not None:
            return f"of {self.outputs[0]}, {reason}"
        return centred_fractions(boxes)

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        return self.objects(outputs, row, options)[0]

    @np.errstate(over="ignore", invalid="ignore")
    def objects(
        self, outputs: Mapping[str, Array], row: int, options: PredictOptions
    ) -> tuple[Detections, NDArray[np.intp]]:
        """Return one image's detections, and the query of each."""
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
        """Return query, class id and score of all that `options` may keep, in order of queries."""


@dataclass(frozen=True, slots=True)
class SeparateQueries(Queries):
    """Decodes classes that a sigmoid scores each for itself: a query may be of several classes."""

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude logits of which most queries would be sure of a class, and other boxes."""
        logits = outputs[self.outputs[0]][0]
        return separate_classes(logits) or super(SeparateQueries, self).contradiction(outputs)

    def scores(
        self, logits: NDArray[np.float32], options: PredictOptions
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
        """Return what `Queries.scores` does: as exporters do, the best of queries x classes.

        A sigmoid is computed of those alone.
        """
        classes = logits[:, self.first : logits.shape[1] - self.after]
        conf = options.conf
        least = math.log(max(conf, _LEAST)) - math.log1p(-min(conf, _SUREST)) - _ROUNDING
        passing = (classes >= least) & (classes < np.inf)
        if options.classes is not None:
            passing &= np.isin(np.arange(classes.shape[1]), options.classes)
        query, class_ids = np.nonzero(passing)
        found = classes[query, class_ids]
        if len(found) > options.max_det:
            best = found >= np.partition(found, -options.max_det)[-options.max_det]
            query, class_ids, found = query[best], class_ids[best], found[best]
        return query, class_ids, np.reciprocal(1 + np.exp(-found))
