"""Decodes classifiers: one number for each class, of the whole image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.classes import Classes, best_classes
from fovea_engines.detect.heads.base import CROPPED, Head
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_preprocess.plural import counted

# The sum of a softmax in float16 is so far off 1.
_ROUNDING = 0.02
# Of ImageNet-1k, without and with a class for "background", and of ImageNet-21k and its cleaned
# forms: no common embedding has such a length.
_IMAGENET = {1000, 1001, 10450, 11221, 21841, 21843}


class Classifier(Head):
    """Decodes probabilities [batch, classes] or [batch, classes, 1, 1], which add up to 1."""

    family = "classifier"
    task = "classify"
    preprocess = CROPPED
    guessed = (
        "torchvision and timm cut out the middle, and take mean and std of ImageNet; others differ"
    )

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output with a number for each class."""
        if len(signature.outputs) != 1:
            return OTHERS
        [output] = signature.outputs
        if len(output.shape) < 2 or output.shape[2:] not in ((), (1, 1)):
            return OTHERS
        if not output.dtype.startswith("float"):
            return f"{output.name} is of {output.dtype}, not float"
        if isinstance(count := signature.count_classes(output.shape[1]), str):
            return count
        if count == 1:
            return "one number an image is no choice between classes"
        return Fit((output.name,), count, f"a number for each of {count} classes")

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude what is no probability, and probabilities that do not add up to 1."""
        if (reason := self._no_row(outputs)) is not None:
            return reason
        numbers = self._numbers(outputs, 0)
        low, high, total = numbers.min(), numbers.max(), numbers.sum()
        if low < -_ROUNDING or high > 1 + _ROUNDING:
            return f"its numbers are no probabilities: they go from {low:.3g} to {high:.3g}"
        if abs(total - 1) > _ROUNDING:
            return (
                f"its probabilities add up to {total:.3g} and not to 1: each class has a sigmoid "
                "of its own, as where an image has several labels"
            )
        return None

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Classes:
        """Return one image's most probable classes."""
        return best_classes(self._numbers(outputs, row), options)

    def _numbers(self, outputs: Mapping[str, Array], row: int) -> NDArray[np.float32]:
        """Return one image's numbers, [classes]."""
        numbers: Array = outputs[self.outputs[0]][row]
        return numbers.astype(np.float32).ravel()

    def _no_row(self, outputs: Mapping[str, Array]) -> str | None:
        shape = outputs[self.outputs[0]].shape
        if shape[:1] == (1,):
            return None
        return f"{self.outputs[0]} has {counted(shape[0], 'row')} for one image"


class ClassifierLogits(Classifier):
    """Decodes logits, whose softmax is the probabilities."""

    family = "classifier-logits"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output with a number for each class, and for classes."""
        fit = Classifier.fit(signature)
        if isinstance(fit, str):
            return fit
        named = signature.num_labels is not None or signature.task is not None
        if named or fit.num_classes in _IMAGENET:
            return fit
        unsure = (
            f"{fit.num_classes} numbers may be features instead of classes: if they are classes, "
            "give their names with --labels, or --head classifier-logits"
        )
        return replace(fit, unsure=unsure)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude probabilities."""
        if (reason := self._no_row(outputs)) is not None:
            return reason
        numbers = self._numbers(outputs, 0)
        if numbers.min() >= 0 and numbers.max() <= 1:
            return f"they are no logits: all are from {numbers.min():.3g} to {numbers.max():.3g}"
        return None

    @np.errstate(all="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Classes:
        """Return one image's most probable classes."""
        logits = self._numbers(outputs, row)
        finite = np.isfinite(logits)
        powers = np.exp(logits - logits.max(where=finite, initial=-np.inf))
        return best_classes(powers / powers.sum(where=finite), options)


class YoloClassifier(Classifier):
    """Decodes the classifiers of YOLOv5, v8, v11 and v26, trained on 0 to 1 without a mean."""

    family = "yolo-classifier"
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "center-crop"}
    guessed = ""

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output with a number for each class, and Ultralytics' metadata."""
        fit = Classifier.fit(signature)
        if isinstance(fit, str):
            return fit
        if signature.metadata.get("task") == "classify":
            return replace(fit, strength=Strength.METADATA, why=f"{fit.why}; the task is classify")
        return replace(fit, strength=Strength.RARE)
