"""Decodes models with four outputs: boxes, scores, class ids, and the number of rows.

    efficientnms       NVIDIA's plugin EfficientNMS_TRT and its stand-ins: YOLOv6 and v7 end to end,
                       YOLOv8-TensorRT, YOLO-NAS "batch", TensorRT-YOLO
                       [n, k, 4] in pixels, scores [n, k], class ids [n, k], and their number [n, 1]
    tf-detection       TensorFlow's object detection API (its exporter and `standard_fields`)
                       y1 x1 y2 x2 as fractions, classes from 1, and their number [n], in float32
    tflite-detection   the operator TFLite_Detection_PostProcess
                       the outputs of tf-detection, but with classes from 0

n is the batch size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from fovea_engines.heads.base import Head
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.heads.suppressed import Rows, Suppressed
from fovea_engines.session import Array, TensorSpec

# Names of the four outputs: boxes, scores, class ids and number of rows. Each line is for some
# exporters. With these names, boxes are in pixels.
_PIXELS = (
    ("det_boxes", "det_scores", "det_classes", "num_dets"),  # YOLOv6, v7, TensorRT-YOLO
    ("bboxes", "scores", "labels", "num_dets"),  # YOLOv8-TensorRT
    ("pred_boxes", "pred_scores", "pred_classes", "num_predictions"),  # super-gradients, "batch"
)
_API = ("detection_boxes", "detection_scores", "detection_classes", "num_detections")
# Names of the four outputs if tf2onnx names the API's eight outputs "Identity" and a number. The
# number is the position of the original name in alphabetical order.
_UNNAMED_API = ("Identity_1", "Identity_4", "Identity_2", "Identity_5")
_MORE_OF_API = re.compile("raw_detection_|detection_(anchor_indices|multiclass_scores)$|Identity")
_IN_PIXELS = "boxes in pixels of the input, with scores and class ids, and their number"
_ADDED = re.compile(r"^graph\d_|:0$")


class EfficientNms(Suppressed):
    """Decodes x1 y1 x2 y2 in pixels of the input."""

    family = "efficientnms"
    preprocess: ClassVar[Mapping[str, Any]] = {"unscale": "ratio"}
    guessed = "most such models use letterboxed RGB images with values from 0 to 1, but some do not"
    variants = ("mean-std",)

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the four outputs, with names in `_PIXELS` or with unknown names."""
        for names in _PIXELS:
            if found := _find_by_name(signature, names):
                return _fit(signature, found, _IN_PIXELS, Strength.NAMES)
        if found := _find_by_name(signature, _API):
            strength = Strength.SHAPE if _floats(found) else Strength.NAMES
            return _fit(signature, found, _IN_PIXELS, strength)
        if found := _find_by_shape(signature, scores_first=True):
            return _fit(signature, found, _IN_PIXELS)
        return OTHERS

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if the number of rows is impossible, or if `Suppressed` finds a
        reason.
        """
        boxes, _, _, count = (outputs[name][0] for name in self.outputs)
        if not 0 <= _read_count(count) <= len(boxes):
            return f"{self.outputs[3]} is {_read_count(count)}, but there are {len(boxes)} rows"
        return super().contradiction(outputs)

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield the number of rows, and the columns of the rows that are not padding."""
        yield f"output {self.outputs[3]}", outputs[self.outputs[3]][row : row + 1]
        yield from super().numbers(outputs, row)

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return the rows of one image. The fourth output contains their number."""
        boxes, scores, class_ids, count = (outputs[name][row] for name in self.outputs)
        counted = max(_read_count(count), 0)
        return Rows(boxes[:counted], scores[:counted], class_ids[:counted])


class TensorFlowDetection(EfficientNms):
    """Decodes y1 x1 y2 x2 as fractions of the input.

    Attributes:
        operator: names of the outputs of an operator that only this family uses; empty if there is
            no such operator.
        of_api: strength of the fit if float32 outputs have the names of TensorFlow's API.
    """

    sized = True
    y_first = True
    normalised = True
    operator: ClassVar[tuple[str, ...]] = ()
    of_api: ClassVar[Strength]

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the names and types of the operator or of TensorFlow's API.

        With other names, the fit is weak: the model's output values must exclude other families.
        """
        why = f"y1 x1 y2 x2 as fractions, classes from {cls.first_class}"
        if cls.operator and (found := _find_by_name(signature, cls.operator)):
            return _fit(signature, found, why, Strength.NAMES)
        if found := _find_by_name(signature, _API) or _find_by_name(signature, _UNNAMED_API):
            # TensorRT's plugin for suppression uses the same names for integers.
            strength = cls.of_api if _floats(found) else Strength.RARE
            return _fit(signature, found, why, strength)
        if found := _find_by_shape(signature, scores_first=False):
            return _fit(signature, found, why) if _floats(found) else OTHERS
        return OTHERS


def _find_by_name(signature: Signature, names: tuple[str, ...]) -> tuple[TensorSpec, ...]:
    """Return the outputs with these names.

    If the names or the shapes of the model's outputs differ, return an empty tuple.
    """
    by_name = {_ADDED.sub("", tensor.name): tensor for tensor in signature.outputs}
    others = by_name.keys() - set(names)
    if not by_name.keys() >= set(names) or not all(map(_MORE_OF_API.match, others)):
        return ()
    return _check_count(tuple(by_name[name] for name in names))


def _find_by_shape(signature: Signature, *, scores_first: bool) -> tuple[TensorSpec, ...]:
    """Return the four outputs, found by their shapes. If they do not fit, return an empty tuple.

    Args:
        signature: facts about the model.
        scores_first: True if scores come before class ids. This matters if both are floats.
    """
    counts = [one for one in signature.outputs if one.shape[1:] in ((), (1,))]
    boxes = [one for one in signature.outputs if len(one.shape) == 3]
    others = [one for one in signature.outputs if one not in (*counts, *boxes)]
    if (len(counts), len(boxes), len(others)) != (1, 1, 2):
        return ()
    whole = [one.dtype.startswith("int") for one in others]
    if whole == [True, False] or (whole == [False, False] and not scores_first):
        others.reverse()
    return _check_count((*boxes, *others, *counts))


def _check_count(found: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    boxes, scores, class_ids, count = found
    ranks = len(boxes.shape), len(scores.shape), len(class_ids.shape)
    sound = ranks == (3, 2, 2) and boxes.shape[2] in (-1, 4) and scores.dtype.startswith("float")
    return found if sound and (len(count.shape) == 1 or count.shape[1:] in ((1,), (-1,))) else ()


def _read_count(count: Array) -> int:
    """Return the only number of an array as an int. For NaN, return 0."""
    return int(np.nan_to_num(np.float64(count.item())))


def _floats(found: tuple[TensorSpec, ...]) -> bool:
    return found[2].dtype.startswith("float")


def _fit(
    signature: Signature,
    found: tuple[TensorSpec, ...],
    why: str,
    strength: Strength = Strength.SHAPE,
) -> Fit:
    return Fit(tuple(one.name for one in found), signature.num_labels, why, strength)


HEADS: tuple[type[Head], ...] = (
    EfficientNms,
    TensorFlowDetection.as_family(
        "tf-detection",
        of_api=Strength.NAMES,
        first_class=1,
        preprocess={"fit": "stretch", "scale": 1.0},
        guessed="SSD stretches images, but EfficientDet and Faster R-CNN letterbox them",
        variants=("letterboxed",),
    ),
    # Models with float inputs take values of -1 to 1, as in the API's guide to mobile devices.
    TensorFlowDetection.as_family(
        "tflite-detection",
        operator=tuple(f"TFLite_Detection_PostProcess{part}" for part in ("", ":2", ":1", ":3")),
        of_api=Strength.RARE,
        preprocess={
            "fit": "stretch",
            "scale": 1.0,
            "mean": (127.5, 127.5, 127.5),
            "std": (127.5, 127.5, 127.5),
        },
        guessed=(
            "most such models stretch images, and models with float inputs use values from -1 to 1"
        ),
        variants=("0-to-1",),
    ),
)
