"""Decodes maps over the whole image: a class, a degree of foreground or a depth for each pixel.

    semantic     SegFormer and similar models (Hugging Face, torchvision): class scores
                 [n, classes, h, w]
    deeplab      DeepLab of TensorFlow: class scores [n, h, w, classes]
    class-map    YOLO26, PaddleSeg, MMSegmentation: class ids [n, h, w] or [n, 1, h, w]
    u2net        U^2-Net: one or seven outputs; the first is probabilities [n, 1, h, w]
    isnet        IS-Net (DIS), RMBG and models with their preprocessing: any number of outputs;
                 the first is probabilities [n, 1, h, w]
    depth        Depth Anything, MiDaS, DPT: depths [n, h, w] or [n, 1, h, w] without a unit
    yolo-depth   YOLO26: depths in metres, [n, h, w] or [n, 1, h, w]

n is the batch size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fovea_engines.heads.base import IMAGENET, Head
from fovea_engines.heads.evidence import no_class_ids, no_class_scores, no_probability
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.results.map_encoding import NOTHING
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask, best_of
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.text import counted

# Largest number of channels of an image or of a feature map with few channels. Class scores with so
# few channels are hard to distinguish from such maps.
_MAX_CHANNELS = 8
_STRIDES = (1, 2, 4, 8, 16)
_DEPTH_NAMES = ("predicted_depth", "depth")


class Semantic(Head):
    """Decodes logits or probabilities over the whole input.

    Attributes:
        axis: index of the dimension of the classes.
    """

    task = "semantic"
    axis: ClassVar[int]

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one map of classes, and an optional auxiliary map."""
        if len(signature.outputs) != 1 and signature.named("out", "aux") == OTHERS:
            return OTHERS
        output = signature.outputs[0]
        if len(output.shape) != 4 or not output.dtype.startswith("float"):
            return OTHERS
        height, width = output.shape[2:] if cls.axis == 1 else output.shape[1:3]
        count = output.shape[cls.axis]
        if 0 <= count < 2:
            return OTHERS
        if isinstance(found := _find_stride(signature, (height, width)), str):
            return found
        if isinstance(classes := signature.count_classes(count), str):
            return classes
        strength, why = found
        # A map with many channels and the size of the input probably contains class scores.
        guessed = False
        if signature.task is not None:
            strength = Strength.METADATA
        elif output.name == "logits":
            strength = Strength.NAMES
        elif signature.num_labels is None:
            guessed = signature.size == (height, width) and classes > _MAX_CHANNELS
            if not guessed and strength is Strength.POSSIBLE:
                return OTHERS
            strength = strength if guessed else Strength.ON_REQUEST
        why = f"{why}; {counted(classes, 'class')}"
        return Fit((output.name,), classes, why, strength, sure=not guessed)

    def doubt(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if the channels are not scores of classes, but for example an image
        or features.
        """
        planes = np.moveaxis(outputs[self.outputs[0]][0], self.axis - 1, 0).astype(np.float32)
        return no_class_scores(np.nan_to_num(planes))

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> ClassMap:
        """Return the class map of one image."""
        planes = np.moveaxis(outputs[self.outputs[0]][row], self.axis - 1, 0)
        logits = np.array(planes, np.float32, order="C")
        # Replace infinite values: interpolation multiplies some values by 0, and infinity times 0
        # is NaN.
        np.nan_to_num(logits, copy=False, nan=-1e30, posinf=1e30, neginf=-1e30)
        ids = best_of(logits)
        return ClassMap(ids, logits[np.unique(ids)], _select_ids(options))


class ClassIds(Head):
    """Decodes whole numbers [batch, h, w] or [batch, 1, h, w], which are class ids."""

    family = "class-map"
    task = "semantic"
    guessed = (
        "Ultralytics uses letterboxed RGB images with values from 0 to 1; other exporters stretch "
        "images and use a mean and std"
    )

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one map of whole numbers."""
        if len(signature.outputs) != 1:
            return OTHERS
        [output] = signature.outputs
        if not _is_map(output) or output.dtype.startswith(("float", "bool")):
            return OTHERS
        if isinstance(found := _find_stride(signature, output.shape[-2:]), str):
            return found
        strength, why = found
        if signature.task is not None:
            strength = Strength.METADATA
        why = f"{why}, of {output.dtype}"
        return Fit((output.name,), signature.num_labels, why, strength)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return a reason against the family if numbers are not class ids."""
        return no_class_ids(outputs[self.outputs[0]].ravel(), self.outputs[0])

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> ClassMap:
        """Return the class map of one image."""
        found = outputs[self.outputs[0]][row]
        ids = found.reshape(found.shape[-2:])
        sound = (ids >= 0) & (ids < NOTHING)
        return ClassMap(np.where(sound, ids, NOTHING).astype(np.uint16), kept=_select_ids(options))


class Foreground(Head):
    """Decodes foreground probabilities.

    The values are scaled so that the minimum is 0 and the maximum is 1, as in rembg.

    Attributes:
        levels: number of output maps that identifies this family; 0 if several families have the
            same number of maps.
    """

    task = "saliency"
    nameless = True
    levels: ClassVar[int] = 0

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for a map of one channel as the first output. Further outputs are allowed."""
        outputs = signature.outputs
        if cls.levels and any(len(t.shape) != 4 or t.shape[1] not in (1, -1) for t in outputs):
            return OTHERS
        return one_channel(signature, Strength.SHAPE if len(outputs) == cls.levels else None)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return a reason against the family if numbers are not probabilities."""
        return no_probability(outputs[self.outputs[0]].ravel(), self.outputs[0])

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> SoftMask:
        """Return the foreground of one image."""
        values = np.nan_to_num(outputs[self.outputs[0]][row, 0].astype(np.float32), copy=False)
        low, high = values.min(), values.max()
        return SoftMask((values - low) / (high - low) if high > low else np.zeros_like(values))


class Depth(Head):
    """Decodes depths without a unit.

    Attributes:
        metres: True if values are in metres.
        corners: True if the centres of the outermost cells coincide with the centres of the
            outermost pixels. `smooth` explains this.
    """

    family = "depth"
    task = "depth"
    nameless = True
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch", **IMAGENET}
    guessed = (
        "Depth Anything and MiDaS's small model use ImageNet's mean and std, but other models may "
        "not"
    )
    metres: ClassVar[bool] = False
    corners: ClassVar[bool] = False

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one map of one channel."""
        if len(signature.outputs) != 1:
            return OTHERS
        [output] = signature.outputs
        if len(output.shape) not in (3, 4) or not output.dtype.startswith("float"):
            return OTHERS
        if len(output.shape) == 4 and output.shape[1] != 1:
            return OTHERS
        if isinstance(found := signature.at_stride(output.shape[-2:], 1), str):
            return found
        usual, why = found
        strength = cls._strength(signature)
        if strength is Strength.ON_REQUEST and usual is Strength.POSSIBLE:
            return OTHERS
        return Fit((output.name,), None, f"{why}, with one channel", strength)

    @classmethod
    def _strength(cls, signature: Signature) -> Strength:
        if signature.task is not None or signature.outputs[0].name in _DEPTH_NAMES:
            return Strength.NAMES
        return Strength.ON_REQUEST

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> DepthMap:
        """Return the depth map of one image. Values that are not finite become the minimum."""
        found = outputs[self.outputs[0]][row]
        values = found.reshape(found.shape[-2:]).astype(np.float32)
        finite = np.isfinite(values)
        if not finite.all():
            values[~finite] = values[finite].min() if finite.any() else 0
        return DepthMap(values, self.metres, self.corners)


class YoloDepth(Depth):
    """Decodes the depth maps of YOLO26, which are in metres."""

    family = "yolo-depth"
    preprocess: ClassVar[Mapping[str, Any]] = {"fit": "stretch"}
    guessed = ""
    metres = True
    corners = True

    @classmethod
    def _strength(cls, signature: Signature) -> Strength:
        return Strength.METADATA if signature.family == "Depth" else Strength.ON_REQUEST

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if numbers are negative, so that they are not metres.
        """
        least = np.asarray(outputs[self.outputs[0]], np.float32).min(initial=0)
        return (
            (f"depths in metres cannot be negative, but one value is {least:.3g}")
            if least < 0
            else None
        )


def _select_ids(options: PredictOptions) -> tuple[int, ...] | None:
    if options.classes is None:
        return None
    return tuple(each for each in options.classes if isinstance(each, int))


def _is_map(output: TensorSpec) -> bool:
    return len(output.shape) == 3 or (len(output.shape) == 4 and output.shape[1] == 1)


def _find_stride(signature: Signature, places: tuple[int, ...]) -> tuple[Strength, str] | str:
    """Return the strength and a text if (height, width) can be the size of a map.

    Otherwise return the reason why not.
    """
    found = [signature.at_stride((places[0], places[1]), stride) for stride in _STRIDES]
    fits = [one for one in found if not isinstance(one, str)]
    if fits:
        return fits[0]
    return f"a map of {places[0]}x{places[1]} does not fit any stride of the input"


def one_channel(signature: Signature, strength: Strength | None = None) -> Fit | str:
    """Return the fit of the first output, which must be a map of one channel.

    Args:
        signature: facts about the model.
        strength: strength of the fit. Without it, the fit is weak, because models of any kind may
            have such an output.
    """
    if not signature.outputs:
        return OTHERS
    output = signature.outputs[0]
    if len(output.shape) != 4 or output.shape[1] != 1 or not output.dtype.startswith("float"):
        return OTHERS
    if isinstance(found := signature.at_stride(output.shape[2:], 1), str):
        return found
    usual, why = found
    if strength is not None:
        strength = min(strength, usual)
    elif signature.task is not None:
        strength = Strength.METADATA
    elif usual is Strength.POSSIBLE:
        return OTHERS
    else:
        strength = Strength.ON_REQUEST
    return Fit((output.name,), None, f"{why}, with one channel", strength)


_STRETCHED: Mapping[str, Any] = {"fit": "stretch", "resample": "lanczos"}

HEADS: tuple[type[Head], ...] = (
    Semantic.as_family(
        "semantic",
        axis=1,
        preprocess={"fit": "stretch", "resample": "antialias", **IMAGENET},
        guessed=(
            "models of Hugging Face and torchvision use ImageNet's mean and std, but other models "
            "may not"
        ),
    ),
    Semantic.as_family(
        "deeplab",
        axis=3,
        preprocess={"fit": "stretch", "scale": 1 / 127.5, "mean": (1.0, 1.0, 1.0)},
        guessed="models of TensorFlow use different values of mean and std",
    ),
    ClassIds,
    # U^2-Net returns seven maps: one for each of six decoder levels, and one that combines them.
    Foreground.as_family("u2net", levels=7, preprocess={**_STRETCHED, **IMAGENET}),
    Foreground.as_family("isnet", preprocess={**_STRETCHED, "mean": (0.5, 0.5, 0.5)}),
    Depth,
    YoloDepth,
)
