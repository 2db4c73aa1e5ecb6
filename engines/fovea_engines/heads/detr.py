"""Decodes DETR, RT-DETR and related models. Their queries need no suppression.

    detr                     DETR, YOLOS of Hugging Face: a softmax whose last class is "none"
    rtdetr-raw               RT-DETR, D-FINE, DEIM without post-processing (torch, Hugging Face,
                             LibreYOLO): a sigmoid for each class
                             logits [n, queries, classes], boxes cx cy w h, 0 to 1, [n, queries, 4]
    rtdetr-raw-seg           D-FINE of LibreYOLO: the outputs of rtdetr-raw, and masks
                             [n, queries, h, w]
    rtdetr                   RT-DETR v1 to v4, D-FINE, DEIM, DEIMv2 with post-processing
                             labels [n, k], boxes x1 y1 x2 y2 in pixels [n, k, 4], scores [n, k]
    ultralytics-rtdetr       RT-DETR by Ultralytics from 8.4 on
                             [n, k, 6]: cx cy w h, 0 to 1, score, class
    ultralytics-rtdetr-raw   RT-DETR by Ultralytics before 8.4
                             [n, queries, 4 + classes]: cx cy w h, 0 to 1, probabilities

The options `iou` and `agnostic` have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import IMAGENET, Detector, Head, corners
from fovea_engines.heads.evidence import (
    no_class_ids,
    no_probabilities,
    ranks,
    unranked,
    usual,
    whole_numbers,
)
from fovea_engines.heads.queries import (
    COCO_IDS,
    MAX_QUERIES,
    Queries,
    SeparateQueries,
    background_last,
    beyond,
    centred_fractions,
    neighbours,
    no_queries,
    none_last,
    shares,
)
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.heads.suppressed import MAX_CLASSES, Rows, Suppressed
from fovea_engines.results.detections import Detections
from fovea_engines.results.nms import detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.text import counted

_NAMES = (("pred_logits", "pred_boxes"), ("logits", "pred_boxes"))
"""Pairs of output names (logits, boxes). The second pair is for models from Hugging Face."""

_SIZES = "orig_target_sizes"
"""Name of the second input, which is a size in pixels. The graph scales boxes to this size."""

_HEAD = "RTDETRDecoder"
# Smallest number of queries in an export of Ultralytics. These exports usually have 300 queries. An
# output with fewer rows may have another meaning, for example the characters of a text.
_MIN_QUERIES = 100
# Largest number of classes. LVIS has 1203. An output with more columns belongs to another family:
# its columns are boxes.
_MAX_CLASSES = 1300


class RawRtDetr(SeparateQueries):
    """Decodes RT-DETR, D-FINE, DEIM and similar models, which have a sigmoid for each class."""

    family = "rtdetr-raw"
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch", "resample": "antialias"}
    guessed = (
        "RT-DETR, D-FINE and DEIM use values from 0 to 1; Deformable DETR, Conditional DETR, "
        "LW-DETR, and DEIMv2 of size S or larger use ImageNet's mean and std"
    )
    variants = ("mean-std",)
    names = _NAMES

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check the outputs with `Queries.fit`.

        92 columns without 92 class names are probably COCO's 91 ids and "none". Then the model fits
        DETR better, so the strength of this fit is only `SHAPE`.
        """
        fit = super().fit(signature)
        if isinstance(fit, str):
            return fit
        if signature.family == Detr.family:
            return f"the metadata names the family {signature.family}"
        if signature.family:
            why = f"{fit.why}; the metadata names the family {signature.family}"
            return replace(fit, strength=Strength.METADATA, why=why)
        if fit.num_classes == COCO_IDS + 1 != signature.num_labels:
            return replace(fit, strength=Strength.SHAPE)
        return fit

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if logits are a softmax that ends in "none", or boxes do not fit.
        """
        reason = super().contradiction(outputs)
        return reason or none_last(outputs[self.outputs[0]][0])


class Detr(Queries):
    """Decodes DETR and YOLOS: a softmax whose last class is "none"."""

    family = "detr"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        "resample": "antialias",
        **IMAGENET,
    }
    guessed = "the default stretches images, but DETR was trained with their aspect ratio kept"
    variants = ("letterboxed",)
    names = _NAMES
    after = 1

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check the outputs with `Queries.fit`, and check the family in the metadata."""
        fit = super().fit(signature)
        if isinstance(fit, Fit) and signature.family not in ("", cls.family):
            return f"the metadata names the family {signature.family}"
        return fit

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if logits are not a softmax that ends in "none", or boxes do not fit.
        """
        logits = outputs[self.outputs[0]][0]
        return background_last(logits) or super().contradiction(outputs)

    def scores(
        self, logits: NDArray[np.float32], options: PredictOptions
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
        """Return the best class of each query. `Queries.scores` describes the arrays."""
        classes = logits[:, :-1]
        class_ids = classes.argmax(axis=1)
        query = np.arange(len(logits))
        best = classes[query, class_ids]
        # 1 / sum(exp(x - best)) is the softmax of the best class. If exp overflows, the score is 0.
        return query, class_ids, 1 / np.exp(logits - best[:, None]).sum(axis=1)


class RtDetr(Suppressed):
    """Decodes boxes x1 y1 x2 y2 in pixels of the input, with class ids and scores.

    The graph has a second input: the size to which it scales boxes. A build sets it to the size of
    the first input. Some exporters drop the batch axis: labels [k], boxes [k, 4], scores [k].
    """

    family = "rtdetr"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        "resample": "antialias",
        # `pad` is used only if the user chooses a letterbox. onnx_inf.py of D-FINE and DEIMv2 pads
        # with 0.
        "pad": 0,
        "rounding": "down",
        "unscale": "ratio",
    }
    guessed = (
        "RT-DETR, D-FINE and DEIM use values from 0 to 1, and DEIMv2 of size S or larger uses "
        "ImageNet's mean and std; all were trained on stretched images, but onnx_inf.py of D-FINE "
        "and DEIMv2 letterboxes them"
    )
    variants = ("mean-std", "letterboxed", "letterboxed-mean-std")

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for labels, boxes and scores.

        Outputs without a batch axis fit only if the model has the input `orig_target_sizes`.
        """
        named = signature.named("labels", "boxes", "scores")
        if isinstance(named, str):
            return named
        labels, boxes, scores = named
        ranks = len(labels.shape), len(boxes.shape), len(scores.shape)
        of_one = ranks == (1, 2, 1) and (_SIZES in signature.other_inputs or signature.forced)
        if ranks != (2, 3, 2) and not of_one:
            return OTHERS
        if "int" not in labels.dtype or boxes.shape[-1] not in (4, -1):
            return OTHERS
        if signature.family:
            return f"the metadata names the family {signature.family}"
        why = "class ids, boxes and scores, as RT-DETR's exporters name them"
        outputs = (boxes.name, scores.name, labels.name)
        return Fit(outputs, signature.num_labels, why, Strength.NAMES)

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return the rows of one image. Without a batch axis, all rows belong to the only image."""
        found = Rows(*(outputs[name] for name in self.outputs))
        return found if found.scores.ndim == 1 else Rows(*(each[row] for each in found))


class UltralyticsRtDetr(Detector):
    """Decodes exports of Ultralytics 8.4 or later: [batch, k, 6], cx cy w h, score, class id.

    The boxes are fractions of the input, 0 to 1.
    """

    family = "ultralytics-rtdetr"
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch"}
    sized = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output with few rows. If the metadata names a head, check the name."""
        if isinstance(output := signature.single(), str):
            return output
        if signature.family not in ("", _HEAD):
            return f"the metadata names the family {signature.family}"
        if output.shape[1] > MAX_QUERIES:
            return OTHERS
        strength = Strength.METADATA if signature.family else Strength.RARE
        return cls._fit(signature, output, strength)

    @classmethod
    def _fit(cls, signature: Signature, output: TensorSpec, strength: Strength) -> Fit | str:
        columns = output.shape[2]
        if columns > MAX_QUERIES:
            return OTHERS
        if columns != 6:
            return f"a row has {columns} numbers, not cx cy w h score class"
        why = "rows of cx cy w h score class"
        if strength is Strength.METADATA:
            why += f"; the metadata names {_HEAD}"
        return Fit((output.name,), signature.num_labels, why, strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if the columns are in another order, or boxes are not fractions of
        the input.
        """
        rows = outputs[self.outputs[0]][0]
        boxes = rows[rows[:, 4] > 0, :4]
        return (
            no_probabilities(rows[:, 4:5], first=4)
            or no_class_ids(rows[:, 5], "column 5")
            or centred_fractions(boxes)
            or beyond(boxes)
            or ranks(boxes)
            or unranked(rows[:, 4], "column 4")
        )

    def has_evidence(self, outputs: Mapping[str, Array]) -> bool:
        """Return whether there is a row that is not padding. Padding has the score 0."""
        return bool(np.any(outputs[self.outputs[0]][..., 4:]))

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        rows = outputs[self.outputs[0]][row]
        few = rows[rows[:, 4] >= options.conf].astype(np.float32, copy=False)
        few = few[(few[:, 5] >= 0) & (few[:, 5] < MAX_CLASSES)]
        return self._detections(few, few[:, 4], few[:, 5].round().astype(np.int32), options)

    @np.errstate(invalid="ignore", over="ignore")
    def _detections(
        self, rows: Array, scores: Array, class_ids: Array, options: PredictOptions
    ) -> Detections:
        assert self.size is not None, "it is sized"
        boxes = corners(rows[:, :4] * np.array(self.size[::-1] * 2, np.float32))
        return detections(boxes, scores, class_ids, options, suppress=False)


class RawUltralyticsRtDetr(UltralyticsRtDetr):
    """Decodes exports of Ultralytics before 8.4: [batch, queries, 4 + classes].

    The columns are a box and the class probabilities.
    """

    family = "ultralytics-rtdetr-raw"

    @classmethod
    def _fit(cls, signature: Signature, output: TensorSpec, strength: Strength) -> Fit | str:
        _, rows, columns = output.shape
        if isinstance(count := signature.count_classes(columns, 4), str):
            return count
        if count > _MAX_CLASSES:
            return OTHERS
        if strength is not Strength.METADATA:
            if rows < _MIN_QUERIES:
                few = "a dynamic number" if rows == -1 else rows
                return f"the family has at least {_MIN_QUERIES} queries, but the model has {few}"
            if (rows, columns) == signature.size:
                return "the output has the size of the input, so it is a map"
        why = f"queries with cx cy w h and the probabilities of {counted(count, 'class')}"
        return Fit((output.name,), count, why, strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if columns are not probabilities or boxes are not fractions.
        """
        rows = outputs[self.outputs[0]][0]
        classes = rows[:, 4:]
        return (
            no_probabilities(classes, 4)
            or whole_numbers(classes, 4)
            or usual(classes, 4)
            or ("all columns add up to 1, as after a softmax" if shares(rows) else None)
            or centred_fractions(rows[:, :4])
            or neighbours(rows[:, :4])
            or beyond(rows[:, :4])
            or no_queries(rows)
        )

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        rows = outputs[self.outputs[0]][row]
        few = rows[rows[:, 4:].max(axis=1) >= options.conf].astype(np.float32, copy=False)
        classes = few[:, 4:]
        return self._detections(few, classes.max(axis=1), classes.argmax(axis=1), options)


HEADS: tuple[type[Head], ...] = (
    Detr,
    RtDetr,
    RawRtDetr,
    RawRtDetr.as_family("rtdetr-raw-seg", task="segment", more=("pred_masks",)),
    UltralyticsRtDetr,
    RawUltralyticsRtDetr,
)
