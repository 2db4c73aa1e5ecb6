"""Decodes several classifiers in one network, and classes that do not exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.attributes import Attribute, Attributes
from fovea_engines.detect.heads.base import STRETCHED, STRETCHED_MOSTLY, Head, softmax
from fovea_engines.detect.heads.evidence import no_logits
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.plural import counted

# The sum of a softmax in float16 is so far off 1.
_ROUNDING = 0.02


class AttributesHead(Head):
    """Decodes outputs [batch, classes] or [batch, classes, 1, 1], each a softmax of its own."""

    family = "attributes"
    task = "attributes"
    exclusive: ClassVar[bool] = True
    preprocess = STRETCHED
    guessed = STRETCHED_MOSTLY

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for two outputs or more that have a number for each of some classes."""
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
            return "one output is a classifier"
        if len(outputs) == 1 and signature.num_labels is None:
            unsure = (
                "its numbers may be classes that do not exclude each other: if they are, give "
                f"their names with --labels, or --head {cls.family}"
            )
            return replace(fit, strength=Strength.RARE, unsure=unsure)
        return fit

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude what is no probability, and sums that are not as the family has them."""
        sums = []
        for name in self.outputs:
            if (rows := outputs[name].shape[0]) != 1:
                return f"{name} has {counted(rows, 'row')} for one image"
            numbers = outputs[name][0].astype(np.float32)
            low, high = numbers.min(), numbers.max()
            if low < -_ROUNDING or high > 1 + _ROUNDING:
                return f"its numbers are no probabilities: they go from {low:.3g} to {high:.3g}"
            sums.append(float(numbers.sum()))
        whole = [abs(each - 1) <= _ROUNDING for each in sums]
        if self.exclusive and not all(whole):
            return f"probabilities of {self.outputs[whole.index(False)]} do not add up to 1"
        if not self.exclusive and all(whole):
            return "its probabilities add up to 1, as those of a softmax"
        return None

    def unsound(self, outputs: Mapping[str, Array], row: int) -> str | None:
        """Return the first output with a number that is NaN or infinite."""
        # An output of another kind may have no such row.
        finite = {name: np.isfinite(outputs[name][row : row + 1]).all() for name in self.outputs}
        return next((f"output {name}" for name, sound in finite.items() if not sound), None)

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Attributes:
        """Return what each classifier says of one image."""
        found, first = [], 0
        for name in self.outputs:
            numbers = self.probabilities(outputs[name][row].astype(np.float32).ravel())
            found.append(Attribute.of(name, numbers, first, options, exclusive=self.exclusive))
            first += len(numbers)
        return Attributes(tuple(found))

    def probabilities(self, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probabilities of one classifier, float32 [k]."""
        return numbers


class SigmoidAttributes(AttributesHead):
    """Decodes outputs with a sigmoid for each class: an image has any number of them."""

    family = "attributes-sigmoid"
    exclusive = False


class AttributeLogits(AttributesHead):
    """Decodes logits, whose softmax are the probabilities; metadata or the user say so."""

    family = "attributes-logits"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check as for probabilities."""
        fit = super().fit(signature)
        if isinstance(fit, str) or fit.strength is Strength.METADATA:
            return fit
        return replace(fit, strength=Strength.ASKED)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude probabilities."""
        return no_logits(np.concatenate([outputs[name].ravel() for name in self.outputs]))

    def probabilities(self, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the softmax."""
        return softmax(numbers)


def _is_classifier(tensor: TensorSpec, fewest: int) -> bool:
    return (
        len(tensor.shape) >= 2
        and tensor.shape[0] in (-1, 1)
        and tensor.shape[2:] in ((), (1, 1))
        and tensor.shape[1] >= fewest
        and tensor.dtype.startswith("float")
    )
