"""Decodes YOLO and EfficientDet models that suppress duplicates themselves.

Most of them return one table with a row for each detection.

    yolov10               YOLOv10, YOLO26 end to end, exports of Ultralytics with nms=True
                          [n, k, 6]: x1 y1 x2 y2, score, class
    yolov7-end2end        YOLOv7 by export.py --max-wh
                          [k, 7]: image, x1 y1 x2 y2, class, score
    yolonas-flat          YOLO-NAS by export() of super-gradients, "flat"
                          [k, 7]: image, x1 y1 x2 y2, score, class
    class-first-rows      an output batchno_classid_score_x1y1x2y2
                          [k, 7]: image, class, score, x1 y1 x2 y2
    automl-efficientdet   EfficientDet of google/automl
                          [n, k, 7]: image, y1 x1 y2 x2, score, class from 1
    yolov3-nms            YOLOv3 of the ONNX model zoo
                          [n, boxes, 4] y1 x1 y2 x2, [n, classes, boxes], and indices [k, 3]

n is the batch size. A table without n has the rows of all images.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from fovea_engines.heads.base import Head
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.heads.suppressed import Columns, Rows, Suppressed
from fovea_engines.session import Array, TensorSpec

MAX_ROWS = 1000
"""Largest number of rows in a table of detections.

Exports return the best 100 to 1000 boxes. A table with more rows has a row for each cell of a grid.
"""

_LAYER = "yolonms_layer"
_WORDS = {
    "image": "image|img|batch",
    "class": "class|cls|label|category",
    "score": "score|conf|confidence|prob",
    "x1 y1 x2 y2": "x1y1x2y2|xyxy",
    "y1 x1 y2 x2": "y1x1y2x2|yxyx",
    "cx cy w h": "cxcywh|xywh",
}
_WORD = re.compile(
    "|".join(
        f"(?P<_{n}>(?:{words})(?:_?(?:no|ids?|idx|index|num))?(?=_|$))"
        for n, words in enumerate(_WORDS.values())
    )
)


class YoloV10(Columns):
    """Decodes columns x1 y1 x2 y2 in pixels of the input, score, class id.

    Attributes:
        order: names of the columns, for messages.
    """

    family = "yolov10"
    box = 0
    score = 4
    class_id = 5
    order: ClassVar[str] = "x1 y1 x2 y2 score class"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for an output [batch, k, 6]."""
        output = signature.single()
        return output if isinstance(output, str) else cls.fit_rows(signature, output)

    @classmethod
    def fit_rows(cls, signature: Signature, output: TensorSpec, more: int = 0) -> Fit | str:
        """Check for rows of six columns, which `more` further columns follow."""
        _, boxes, columns = output.shape
        if signature.family == "RTDETRDecoder":
            return "the metadata names the family RTDETRDecoder"
        after = f" and {more} more" if more else ""
        if columns != 6 + more:
            few = boxes <= MAX_ROWS and (boxes == -1 or columns <= boxes)
            row = f"a row has {columns} numbers, not {cls.order}{after}"
            return row if few else OTHERS
        if boxes > MAX_ROWS:
            return f"the family has at most {MAX_ROWS} rows, but the model has {boxes}"
        sure = boxes > 0 or bool(signature.end_to_end)
        rows = "a dynamic number of" if boxes == -1 else str(boxes)
        return Fit(
            (output.name,),
            signature.num_labels,
            f"{rows} rows of {cls.order}{after}",
            Strength.SHAPE if sure else Strength.POSSIBLE,
        )

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield all columns of the rows that are not padding, also columns after the first six."""
        table = outputs[self.outputs[0]][row]
        yield f"output {self.outputs[0]}", table[~(table[:, self.score] <= 0)]


class ImageRows(Columns):
    """Decodes rows [k, 7] of all images of a batch; the first column is the index of the image.

    Attributes:
        order: names of the columns, for messages, in the form that `read_order` returns.
        named: ending of an output's name that only this family uses; None if there is no such
            ending.
        by_name: True if a model belongs to this family only if the name of its output lists the
            columns.
    """

    order: ClassVar[str]
    named: ClassVar[str | None] = None
    by_name: ClassVar[bool] = False

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output of seven columns without a batch axis."""
        if len(signature.outputs) != 1 or signature.outputs[0].shape[1:] not in ((7,), (-1,)):
            return OTHERS
        name = signature.outputs[0].name
        declared = read_order(name.lower())
        if declared not in (None, cls.order):
            return f"the name of the output lists the columns {declared}"
        named = declared is not None or (cls.named is not None and name.endswith(cls.named))
        if cls.by_name and not named and not signature.forced:
            return OTHERS
        strength = Strength.NAMES if named else Strength.SHAPE
        return Fit((name,), signature.num_labels, f"rows of {cls.order}", strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if the columns are in another order, or an image index is not 0
        although there is one image.
        """
        images = outputs[self.outputs[0]][:, 0]
        if images.any():
            return f"column 0 must be the image index 0, but its maximum is {images.max():.3g}"
        return super().contradiction(outputs)

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield the image indices of all rows, and the other columns of the rows of one image."""
        yield "column 0", outputs[self.outputs[0]][:, 0]
        yield from super().numbers(outputs, row)

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return the rows of one image."""
        table = outputs[self.outputs[0]]
        return self.split(table[table[:, 0] == row])


class AutoMlEfficientDet(Columns):
    """Decodes exports of google/automl, [batch, k, 7]: image, y1 x1 y2 x2, score, class id from 1.

    The graph itself resizes images without changing the aspect ratio, and normalises them.
    """

    family = "automl-efficientdet"
    preprocess: ClassVar[Mapping[str, Any]] = {"anchor": "top-left", "scale": 1.0}
    resizes = True
    box = 1
    score = 5
    class_id = 6
    y_first = True
    first_class = 1

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for an output [batch, k, 7] with the name that google/automl gives it."""
        if isinstance(output := signature.single(), str):
            return output
        if output.shape[2] not in (-1, 7) or output.name.removesuffix(":0") != "detections":
            return OTHERS
        why = "rows of image, y1 x1 y2 x2, score, class from 1"
        return Fit((output.name,), signature.num_labels, why, Strength.NAMES)


class YoloV3Nms(Suppressed):
    """Decodes y1 x1 y2 x2 [batch, boxes, 4], scores [batch, classes, boxes] and indices [k, 3].

    Each index contains the numbers of an image, a class and a box. In tiny models the indices are
    [1, k, 3]. The graph scales boxes to the size that the input `image_shape` contains. A build
    sets `image_shape` to the size of the model's input, so boxes are in pixels of the input.
    """

    family = "yolov3-nms"
    preprocess: ClassVar[Mapping[str, Any]] = {"pad": 128}
    y_first = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the three outputs. Their names must contain the name of the layer."""
        names = tuple(tensor.name for tensor in signature.outputs)
        kinds = [tensor.dtype[:3] for tensor in signature.outputs]
        if kinds != ["flo", "flo", "int"]:
            return OTHERS
        boxes, scores, kept = signature.outputs
        if len(boxes.shape) != 3 or len(scores.shape) != 3:
            return OTHERS
        if boxes.shape[2] not in (-1, 4) or kept.shape[-1] not in (-1, 3):
            return OTHERS
        if not (signature.forced or all(name.startswith(_LAYER) for name in names)):
            return OTHERS
        classes = signature.num_labels if scores.shape[1] == -1 else scores.shape[1]
        if signature.num_labels not in (None, classes):
            return (
                f"the model has {classes} classes, but the metadata or --labels name "
                f"{signature.num_labels}"
            )
        why = f"boxes, scores and indices of the layer {_LAYER}"
        return Fit(names, classes, why, Strength.NAMES)

    @property
    def fields(self) -> tuple[str, str]:
        """Names of the scores and of the class ids, for messages."""
        return self.outputs[1], f"column 1 of {self.outputs[2]}"

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return the rows of one image that the indices keep."""
        boxes, scores = (outputs[name][row] for name in self.outputs[:2])
        indices = outputs[self.outputs[2]].reshape(-1, 3)
        limits = np.array([row, 0, 0]), np.array([row, *scores.shape[:2]]) - [0, 1, 1]
        sound = ((indices >= limits[0]) & (indices <= limits[1])).all(axis=1)
        _, class_ids, places = indices[sound].T
        return Rows(boxes[places], scores[class_ids, places], class_ids)


def read_order(name: str) -> str | None:
    """Return the columns that the name of an output lists, e.g. "batchno_classid_score_x1y1x2y2".

    If the name does not list all seven columns of a row, return None.
    """
    found, at, kinds = [], 0, tuple(_WORDS)
    while word := _WORD.match(name, at):
        assert word.lastgroup is not None, "each word is a group"
        found.append(kinds[int(word.lastgroup[1:])])
        at = word.end() + 1
    whole = at > len(name) and len(found) == len(set(found)) == 4
    return ", ".join(found) if whole and {"image", "class", "score"} < {*found} else None


HEADS: tuple[type[Head], ...] = (
    YoloV10,
    ImageRows.as_family(
        "yolov7-end2end",
        box=1,
        class_id=5,
        score=6,
        order="image, x1 y1 x2 y2, class, score",
    ),
    ImageRows.as_family(
        "yolonas-flat",
        box=1,
        score=5,
        class_id=6,
        order="image, x1 y1 x2 y2, score, class",
        named="flat_predictions",
        preprocess={"unscale": "ratio"},
    ),
    ImageRows.as_family(
        "class-first-rows",
        class_id=1,
        score=2,
        box=3,
        order="image, class, score, x1 y1 x2 y2",
        by_name=True,
        guessed="YOLO, YOLOX and other families with such rows use different preprocessing",
        variants=("yolox",),
    ),
    AutoMlEfficientDet,
    YoloV3Nms,
)
