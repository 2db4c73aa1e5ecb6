"""Decodes semantic segmentation: a class for each pixel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fovea_engines.detect.heads.base import IMAGENET, Head
from fovea_engines.detect.heads.evidence import no_class_ids, no_class_scores
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.map_encoding import NOTHING
from fovea_engines.detect.maps import ClassMap, best_of
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.plural import counted

# Images and thin feature maps have as many channels, or fewer.
_MOST_CHANNELS = 8
_STRIDES = (1, 2, 4, 8, 16)


class Semantic(Head):
    """Decodes logits or probabilities [batch, classes, h, w] over the whole input."""

    family = "semantic"
    task = "semantic"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        "resample": "antialias",
        **IMAGENET,
    }
    guessed = "models of Hugging Face and torchvision have ImageNet's mean and std, others differ"
    axis: ClassVar[int] = 1

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one map of classes, which may have an auxiliary one beside it."""
        if len(signature.outputs) != 1 and signature.named("out", "aux") == OTHERS:
            return OTHERS
        output = signature.outputs[0]
        if len(output.shape) != 4 or not output.dtype.startswith("float"):
            return OTHERS
        height, width = output.shape[2:] if cls.axis == 1 else output.shape[1:3]
        count = output.shape[cls.axis]
        if 0 <= count < 2:
            return OTHERS
        if isinstance(found := _at_some_stride(signature, (height, width)), str):
            return found
        if isinstance(classes := signature.count_classes(count), str):
            return classes
        strength, why = found
        # A map of many channels that is as large as the input is guessed to be of classes.
        guessed = False
        if signature.task is not None:
            strength = Strength.METADATA
        elif output.name == "logits":
            strength = Strength.NAMES
        elif signature.num_labels is None:
            guessed = signature.size == (height, width) and classes > _MOST_CHANNELS
            if not guessed and strength is Strength.POSSIBLE:
                return OTHERS
            strength = strength if guessed else Strength.ASKED
        why = f"{why}; {counted(classes, 'class')}"
        return Fit((output.name,), classes, why, strength, sure=not guessed)

    def doubt(self, outputs: Mapping[str, Array]) -> str | None:
        """Doubt channels that are no scores of classes, as those of pictures and of features."""
        planes = np.moveaxis(outputs[self.outputs[0]][0], self.axis - 1, 0).astype(np.float32)
        return no_class_scores(np.nan_to_num(planes))

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> ClassMap:
        """Return one image's classes."""
        planes = np.moveaxis(outputs[self.outputs[0]][row], self.axis - 1, 0)
        logits = np.array(planes, np.float32, order="C")
        # An infinite score, weighted with 0, would be no number.
        np.nan_to_num(logits, copy=False, nan=-1e30, posinf=1e30, neginf=-1e30)
        ids = best_of(logits)
        return ClassMap(ids, logits[np.unique(ids)], _kept(options))


class DeepLab(Semantic):
    """Decodes logits [batch, h, w, classes], as TensorFlow's DeepLab has them."""

    family = "deeplab"
    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        "scale": 1 / 127.5,
        "mean": (1.0, 1.0, 1.0),
    }
    guessed = "models of TensorFlow differ in mean and std"
    axis = 3


class ClassIds(Head):
    """Decodes whole numbers [batch, h, w] or [batch, 1, h, w]: the classes themselves."""

    family = "class-map"
    task = "semantic"
    guessed = "Ultralytics letterboxes RGB from 0 to 1; others stretch, with another mean and std"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one map of whole numbers."""
        if len(signature.outputs) != 1:
            return OTHERS
        [output] = signature.outputs
        if not _is_map(output) or output.dtype.startswith(("float", "bool")):
            return OTHERS
        if isinstance(found := _at_some_stride(signature, output.shape[-2:]), str):
            return found
        strength, why = found
        if signature.task is not None:
            strength = Strength.METADATA
        why = f"{why}, of {output.dtype}"
        return Fit((output.name,), signature.num_labels, why, strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude numbers that are no class ids."""
        return no_class_ids(outputs[self.outputs[0]].ravel(), self.outputs[0])

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> ClassMap:
        """Return one image's classes."""
        found = outputs[self.outputs[0]][row]
        ids = found.reshape(found.shape[-2:])
        sound = (ids >= 0) & (ids < NOTHING)
        return ClassMap(np.where(sound, ids, NOTHING).astype(np.uint16), kept=_kept(options))


def _kept(options: PredictOptions) -> tuple[int, ...] | None:
    if options.classes is None:
        return None
    return tuple(each for each in options.classes if isinstance(each, int))


def _is_map(output: TensorSpec) -> bool:
    return len(output.shape) == 3 or (len(output.shape) == 4 and output.shape[1] == 1)


def _at_some_stride(signature: Signature, places: tuple[int, ...]) -> tuple[Strength, str] | str:
    """Return how surely (height, width) is that of a map over the input, or why it is not."""
    found = [signature.at_stride((places[0], places[1]), stride) for stride in _STRIDES]
    fits = [one for one in found if not isinstance(one, str)]
    if fits:
        return fits[0]
    return f"a map of {places[0]}x{places[1]} is at no stride of the input"
