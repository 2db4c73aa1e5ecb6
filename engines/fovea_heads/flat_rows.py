"""Decodes rows of seven columns, of which the first is the number of the image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.session import Array
from fovea_heads.suppressed import Columns, Rows

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


def spelled(name: str) -> str | None:
    """Return the columns that the name of an output says: "batchno_classid_score_x1y1x2y2".

    None where it says nothing, or not all of a row of seven.
    """
    found, at, kinds = [], 0, tuple(_WORDS)
    while word := _WORD.match(name, at):
        assert word.lastgroup is not None, "each word is a group"
        found.append(kinds[int(word.lastgroup[1:])])
        at = word.end() + 1
    whole = at > len(name) and len(found) == len(set(found)) == 4
    return ", ".join(found) if whole and {"image", "class", "score"} < {*found} else None


@dataclass(frozen=True, slots=True)
class YoloV7EndToEnd(Columns):
    """Decodes image, x1 y1 x2 y2, class id, score [k, 7], as export.py --max-wh of YOLOv7 writes.

    Attributes:
        order: of the columns, for people, and as `spelled` has it.
        named: the end of an output's name that only this family has.
    """

    family: ClassVar[str] = "yolov7-end2end"
    box: ClassVar[int] = 1
    class_id: ClassVar[int] = 5
    score: ClassVar[int] = 6
    order: ClassVar[str] = "image, x1 y1 x2 y2, class, score"
    named: ClassVar[str | None] = None

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output of seven columns without a batch."""
        if len(signature.outputs) != 1 or signature.outputs[0].shape[1:] not in ((7,), (-1,)):
            return OTHERS
        name = signature.outputs[0].name
        said = spelled(name.lower())
        if said not in (None, cls.order):
            return f"the name of the output says that its columns are {said}"
        named = said is not None or (cls.named is not None and name.endswith(cls.named))
        strength = Strength.NAMES if named else Strength.SHAPE
        return Fit((name,), signature.num_labels, f"rows of {cls.order}", strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude other columns, and images that were not there."""
        images = outputs[self.outputs[0]][:, 0]
        if images.any():
            return f"column 0 is no number of the only image: it is up to {images.max():.3g}"
        return super(YoloV7EndToEnd, self).contradiction(outputs)

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield the numbers of the images, and what is in the rows of this one."""
        yield "column 0", outputs[self.outputs[0]][:, 0]
        yield from super(YoloV7EndToEnd, self).numbers(outputs, row)

    def rows(self, outputs: Mapping[str, Array], row: int) -> Rows:
        """Return one image's rows."""
        table = outputs[self.outputs[0]]
        return self.split(table[table[:, 0] == row])


@dataclass(frozen=True, slots=True)
class YoloNasFlat(YoloV7EndToEnd):
    """Decodes image, x1 y1 x2 y2, score, class id [k, 7]: "flat" in export() of super-gradients."""

    family: ClassVar[str] = "yolonas-flat"
    preprocess: ClassVar[Mapping[str, Any]] = {"unscale": "ratio"}
    score: ClassVar[int] = 5
    class_id: ClassVar[int] = 6
    order: ClassVar[str] = "image, x1 y1 x2 y2, score, class"
    named: ClassVar[str] = "flat_predictions"


@dataclass(frozen=True, slots=True)
class ClassFirstRows(YoloV7EndToEnd):
    """Decodes image, class id, score, x1 y1 x2 y2 [k, 7]: `batchno_classid_score_x1y1x2y2`."""

    family: ClassVar[str] = "class-first-rows"
    guessed: ClassVar[str] = "families differ that end in these rows, as YOLO and YOLOX do"
    variants: ClassVar[tuple[str, ...]] = ("yolox",)
    class_id: ClassVar[int] = 1
    score: ClassVar[int] = 2
    box: ClassVar[int] = 3
    order: ClassVar[str] = "image, class, score, x1 y1 x2 y2"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the name, too: without it, rows of seven are those of other families."""
        fit = super(ClassFirstRows, cls).fit(signature)
        if isinstance(fit, str) or fit.strength is Strength.NAMES or signature.forced:
            return fit
        return OTHERS


@dataclass(frozen=True, slots=True)
class AutoMlEfficientDet(Columns):
    """Decodes image, y1 x1 y2 x2, score, class id from 1 [batch, k, 7]; google/automl.

    The graph resizes, keeping the aspect, and normalises by itself.
    """

    family: ClassVar[str] = "automl-efficientdet"
    preprocess: ClassVar[Mapping[str, Any]] = {"anchor": "top-left", "scale": 1.0}
    resizes: ClassVar[bool] = True
    box: ClassVar[int] = 1
    score: ClassVar[int] = 5
    class_id: ClassVar[int] = 6
    y_first: ClassVar[bool] = True
    first_class: ClassVar[int] = 1

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for an output [batch, k, 7] of the name that it has there."""
        if isinstance(output := signature.single(), str):
            return output
        if output.shape[2] not in (-1, 7) or output.name.removesuffix(":0") != "detections":
            return OTHERS
        why = "rows of image, y1 x1 y2 x2, score, class from 1"
        return Fit((output.name,), signature.num_labels, why, Strength.NAMES)
