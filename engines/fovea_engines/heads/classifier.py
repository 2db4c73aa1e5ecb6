"""Decodes classes of the whole image, from one or several classifiers.

    classifier           torchvision, timm, Hugging Face, PP-LCNet: probabilities [n, classes]
    classifier-logits    the same models without the softmax: logits [n, classes]
    yolo-classifier      YOLOv5, v8, 11, 26: probabilities, with the preprocessing of Ultralytics
    attributes           several classifiers: for each probabilities [n, classes]
    attributes-logits    several classifiers without the softmax: logits [n, classes] for each
    attributes-sigmoid   classes that do not exclude each other: probabilities [n, classes]

Outputs may also be [n, classes, 1, 1].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import CROPPED, STRETCHED, STRETCHED_MOSTLY, Head, softmax
from fovea_engines.heads.evidence import no_logits
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.results.attributes import Attribute, Attributes
from fovea_engines.results.classes import Classes, best_classes
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.text import counted

# Tolerance for a sum of probabilities: a float16 softmax may differ from 1 by this much.
_ROUNDING = 0.02
# Numbers of classes: ImageNet-1k without and with "background", ImageNet-21k, and its cleaned
# versions. An output with one of these lengths is a classifier, because embeddings hardly ever have
# these lengths.
_IMAGENET = {1000, 1001, 10450, 11221, 21841, 21843}


class Classifier(Head):
    """Decodes probabilities that add up to 1."""

    family = "classifier"
    task = "classify"
    preprocess = CROPPED
    guessed = (
        "torchvision and timm crop the center and use ImageNet's mean and std, but other "
        "exporters may not"
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
            return f"{output.name} has the type {output.dtype}, not float"
        if isinstance(count := signature.count_classes(output.shape[1]), str):
            return count
        if count == 1:
            return (
                "the output has only one number per image, so there are no classes to choose from"
            )
        return Fit((output.name,), count, f"one number for each of {count} classes")

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if numbers are not probabilities or do not add up to 1.
        """
        if (reason := self._no_row(outputs)) is not None:
            return reason
        numbers = self._numbers(outputs, 0)
        low, high, total = numbers.min(), numbers.max(), numbers.sum()
        if low < -_ROUNDING or high > 1 + _ROUNDING:
            return f"its numbers are not probabilities: they range from {low:.3g} to {high:.3g}"
        if abs(total - 1) > _ROUNDING:
            return (
                f"its probabilities add up to {total:.3g} instead of 1, as in a model that can "
                "give an image several labels"
            )
        return None

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Classes:
        """Return the most probable classes of one image."""
        return best_classes(self._numbers(outputs, row), options)

    def _numbers(self, outputs: Mapping[str, Array], row: int) -> NDArray[np.float32]:
        """Return the numbers of one image, float32 [classes]."""
        numbers: Array = outputs[self.outputs[0]][row]
        return numbers.astype(np.float32).ravel()

    def _no_row(self, outputs: Mapping[str, Array]) -> str | None:
        shape = outputs[self.outputs[0]].shape
        if shape[:1] == (1,):
            return None
        return f"{self.outputs[0]} has {counted(shape[0], 'row')} for one image"


class ClassifierLogits(Classifier):
    """Decodes logits; their softmax gives the probabilities."""

    family = "classifier-logits"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output with a number for each class, and for evidence of classes."""
        fit = Classifier.fit(signature)
        if isinstance(fit, str):
            return fit
        named = signature.num_labels is not None or signature.task is not None
        if named or fit.num_classes in _IMAGENET:
            return fit
        unsure = (
            f"{fit.num_classes} numbers may be features instead of classes: if they are classes, "
            "give their names with --labels, or choose --head classifier-logits"
        )
        return replace(fit, unsure=unsure)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if all numbers are within 0 to 1, so that they are probabilities.
        """
        if (reason := self._no_row(outputs)) is not None:
            return reason
        numbers = self._numbers(outputs, 0)
        if numbers.min() >= 0 and numbers.max() <= 1:
            return (
                f"all numbers are from {numbers.min():.3g} to {numbers.max():.3g}, so they are "
                "not logits"
            )
        return None

    @np.errstate(all="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Classes:
        """Return the most probable classes of one image."""
        logits = self._numbers(outputs, row)
        finite = np.isfinite(logits)
        powers = np.exp(logits - logits.max(where=finite, initial=-np.inf))
        return best_classes(powers / powers.sum(where=finite), options)


class YoloClassifier(Classifier):
    """Decodes classifiers of YOLOv5, v8, v11 and v26.

    They were trained on values of 0 to 1, without mean and std.
    """

    family = "yolo-classifier"
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "center-crop"}
    guessed = ""

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output with a number for each class, and for metadata from Ultralytics."""
        fit = Classifier.fit(signature)
        if isinstance(fit, str):
            return fit
        if signature.metadata.get("task") == "classify":
            return replace(fit, strength=Strength.METADATA, why=f"{fit.why}; the task is classify")
        return replace(fit, strength=Strength.RARE)


class AttributesHead(Head):
    """Decodes several outputs. Each is a classifier with its own classes.

    Attributes:
        exclusive: True if each output is a softmax; False if each class has its own sigmoid.
        logits: True if the softmax is not part of the model. Only the metadata or the user can
            state this.
    """

    task = "attributes"
    preprocess = STRETCHED
    guessed = STRETCHED_MOSTLY
    exclusive: ClassVar[bool] = True
    logits: ClassVar[bool] = False

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check that each output is [batch, classes], and count the classes of all outputs."""
        outputs, fewest = signature.outputs, 2 if cls.exclusive else 1
        if not outputs or not all(_is_classifier(each, fewest) for each in outputs):
            return OTHERS
        total = signature.count_classes(sum(each.shape[1] for each in outputs))
        if isinstance(total, str):
            return total
        why = f"{counted(len(outputs), 'output')} for {counted(total, 'class')}"
        fit = Fit(tuple(each.name for each in outputs), total, why)
        if signature.task is not None:
            return replace(fit, strength=Strength.METADATA, why=f"{why}; the task is attributes")
        if len(outputs) == 1 and cls.exclusive:
            return "a model with a single output is a classifier"
        if cls.logits:
            return replace(fit, strength=Strength.ON_REQUEST)
        if len(outputs) == 1 and signature.num_labels is None:
            unsure = (
                "its numbers may be scores of independent classes: if they are, give the names of "
                f"the classes with --labels, or choose --head {cls.family}"
            )
            return replace(fit, strength=Strength.RARE, unsure=unsure)
        return fit

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if numbers are not probabilities, or their sums do not fit the
        family.
        """
        if self.logits:
            return no_logits(np.concatenate([outputs[name].ravel() for name in self.outputs]))
        sums = []
        for name in self.outputs:
            if (rows := outputs[name].shape[0]) != 1:
                return f"{name} has {counted(rows, 'row')} for one image"
            numbers = outputs[name][0].astype(np.float32)
            low, high = numbers.min(), numbers.max()
            if low < -_ROUNDING or high > 1 + _ROUNDING:
                return f"its numbers are not probabilities: they range from {low:.3g} to {high:.3g}"
            sums.append(float(numbers.sum()))
        whole = [abs(each - 1) <= _ROUNDING for each in sums]
        if self.exclusive and not all(whole):
            return f"the probabilities of {self.outputs[whole.index(False)]} do not add up to 1"
        if not self.exclusive and all(whole):
            return "its probabilities add up to 1, as after a softmax"
        return None

    def unsound(self, outputs: Mapping[str, Array], row: int) -> str | None:
        """Return the name of the first output that contains NaN or infinity. Otherwise None."""
        # Take a slice and not an index: if the first axis of an output is not the batch, the row
        # may not exist, and an index would raise an error.
        finite = {name: np.isfinite(outputs[name][row : row + 1]).all() for name in self.outputs}
        return next((f"output {name}" for name, sound in finite.items() if not sound), None)

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Attributes:
        """Return the classes of each classifier for one image."""
        found, first = [], 0
        for name in self.outputs:
            numbers = outputs[name][row].astype(np.float32).ravel()
            numbers = softmax(numbers) if self.logits else numbers
            found.append(Attribute.of(name, numbers, first, options, exclusive=self.exclusive))
            first += len(numbers)
        return Attributes(tuple(found))


def _is_classifier(tensor: TensorSpec, fewest: int) -> bool:
    return (
        len(tensor.shape) >= 2
        and tensor.shape[0] in (-1, 1)
        and tensor.shape[2:] in ((), (1, 1))
        and tensor.shape[1] >= fewest
        and tensor.dtype.startswith("float")
    )


HEADS: tuple[type[Head], ...] = (
    Classifier,
    ClassifierLogits,
    YoloClassifier,
    AttributesHead.as_family("attributes"),
    AttributesHead.as_family("attributes-logits", logits=True),
    AttributesHead.as_family("attributes-sigmoid", exclusive=False),
)
