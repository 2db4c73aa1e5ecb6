"""Maps: a class, a share of the foreground, or a depth for each pixel of an image.

A network computes them in a grid of its own. They stay so, with the place of the image in it, and
are resized once, when somebody asks for pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import cv2
import numpy as np
from numpy.typing import DTypeLike, NDArray

from fovea_engines.results.class_names import class_name
from fovea_engines.results.map_encoding import (
    LEVELS,
    NOTHING,
    check_there,
    class_png,
    depth_png,
    mask_png,
    read_classes,
    read_levels,
    to_base64,
)
from fovea_engines.results.mask_encoding import (
    Outlines,
    RunLengths,
    polygons,
    read_bitmap,
    read_size,
    run_lengths,
)
from fovea_engines.results.masks import Bitmap
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.resampling import nearest, smooth
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary, check_class
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.text import counted


class ClassArea(NamedTuple):
    """A class of an image, the number of its pixels, and their share of all."""

    class_id: int
    pixels: int
    share: float


# Of an answer that leaves the map out.
_LEFT_OUT = np.zeros((0, 0), np.uint16)


@dataclass(frozen=True, slots=True, eq=False)
class ClassMap(TaskResult):
    """The class of each pixel.

    Attributes:
        ids: uint16 [h, w] over the whole input, the best class of each cell.
        scores: float32 [k, h, w] of the k classes in `ids`, ascending; None of a model that
            computes classes only. They are interpolated, and then the best class is taken. A class
            that is the best of no cell is of no pixel.
        kept: ids of the classes that the request keeps; None for all.
        back: map to the upright image; None in the model's input.
        counted: the classes of an answer that leaves the map out; None to count them.
    """

    tasks: ClassVar[tuple[str, ...]] = ("semantic",)
    field: ClassVar[str] = "semantic"

    ids: NDArray[np.uint16]
    scores: NDArray[np.float32] | None = None
    kept: tuple[int, ...] | None = None
    back: LetterboxMap | None = None
    counted: tuple[ClassArea, ...] | None = None

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the classes of an image, the largest first, with their masks or one map."""
        ids = _LEFT_OUT if self.counted is not None else self.pixels()
        classes: list[dict[str, Any]] = [
            {
                "class_id": class_id,
                "class_name": class_name(vocabulary.labels, class_id),
                "pixels": pixels,
                "share": round(share, 5),
            }
            for class_id, pixels, share in (areas(ids) if self.counted is None else self.counted)
        ]
        if options.mask in ("rle", "polygon"):
            for each in classes:
                each["mask"] = _mask(ids, each["class_id"], polygon=options.mask == "polygon")
        answer: dict[str, Any] = {"classes": classes}
        if options.mask == "png":
            answer["png"] = to_base64(class_png(ids))
        return {self.field: answer}

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """Read the class of each pixel; raises as `TaskResult.from_json`.

        Outlines lack holes and lines, so that the map of mask=polygon is close, and no more.
        """
        given = answer[cls.field]
        size = read_size(answer)
        if "png" in given:
            return cls(read_classes(given["png"], size))
        rows = given["classes"]
        if rows and not any("mask" in each for each in rows):
            counted = [
                ClassArea(check_class(row["class_id"]), int(row["pixels"]), float(row["share"]))
                for row in rows
            ]
            return cls(_LEFT_OUT, counted=tuple(counted))
        ids = np.full(size, NOTHING, np.uint16)
        # The largest is first: outlines cover what lies in their holes, until it is drawn.
        for each in rows:
            left, top, part = read_bitmap(each["mask"], size)
            window = ids[top : top + part.shape[0], left : left + part.shape[1]]
            window[part.view(np.bool_)] = each["class_id"]
        return cls(ids)

    @classmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert classes: `class_map` uint16 [n, h, w], 65535 where the request leaves one out.

        Of any map, h and w are the sides of the largest image, and all beyond an image is zero;
        `sizes` int32 [n, 2] has the height and width of each.
        """
        return _map("class_map", [one.pixels() for one in found], np.uint16)

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """List the tensors."""
        return _list_outputs("class_map", "uint16")

    @property
    def summary(self) -> str:
        """Return the number of classes."""
        found = np.unique(self._drop_unwanted(self.ids))
        return counted(int((found != NOTHING).sum()), "class")

    @property
    def areas(self) -> Sequence[ClassArea]:
        """Return the classes of the upright image, the largest first."""
        return areas(self.pixels()) if self.counted is None else self.counted

    @property
    def arrays(self) -> list[Array]:
        """Return all arrays that it keeps in memory."""
        return [self.ids] if self.scores is None else [self.ids, self.scores]

    def to_source(self, back: LetterboxMap) -> Self:
        """Return it in pixels of the upright image."""
        return replace(self, back=back)

    def shared(self, other: TaskResult) -> float | None:
        """Return the share of cells that have the same class."""
        return float((self.ids == other.ids).mean()) if isinstance(other, ClassMap) else None

    def pixels(self) -> NDArray[np.uint16]:
        """Return the class of each pixel of the upright image, [height, width], or `NOTHING`.

        In the model's input, it is the class of each cell.
        """
        check_there(self.ids)
        if self.back is None:
            found = self.ids
        elif self.scores is None:
            found = nearest(self.ids, self.back)
        else:
            classes = np.unique(self.ids)
            found = classes[best_of(map(partial(smooth, back=self.back), self.scores))]
        return self._drop_unwanted(found)

    def _drop_unwanted(self, ids: NDArray[np.uint16]) -> NDArray[np.uint16]:
        if self.kept is None:
            return ids
        return np.where(np.isin(ids, self.kept), ids, np.uint16(NOTHING))


@dataclass(frozen=True, slots=True, eq=False)
class SoftMask(TaskResult):
    """A foreground, and how far each pixel belongs to it.

    Attributes:
        values: float32 [h, w] over the whole input, 0 (background) to 1.
        back: map to the upright image; None in the model's input.
        share: of the image that is foreground, as an answer has it, in whose file the values are
            rounded, or left out; None to compute it.
    """

    tasks: ClassVar[tuple[str, ...]] = ("saliency",)
    field: ClassVar[str] = "saliency"

    values: NDArray[np.float32]
    back: LetterboxMap | None = None
    share: float | None = None

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the share of the foreground, and its mask."""
        if options.mask == "none" and self.share is not None:
            return {self.field: {"share": self.share}}
        values = self.pixels()
        share = round(float(values.mean()), 5) if self.share is None else self.share
        answer: dict[str, Any] = {"share": share}
        if options.mask != "none":
            answer["png"] = to_base64(mask_png(values))
        return {self.field: answer}

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """Read the foreground of each pixel; raises as `TaskResult.from_json`."""
        given = answer[cls.field]
        share = float(given["share"])
        if "png" not in given:
            return cls(_LEFT_OUT.astype(np.float32), share=share)
        levels = read_levels(given["png"], read_size(answer))
        if levels.dtype != np.uint8:
            raise ValueError("a foreground is a file of 8 bits")
        return cls(np.divide(levels, 255, dtype=np.float32), share=share)

    @classmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert a foreground: `saliency` float32 [n, h, w], 0 to 1, and `sizes`."""
        return _map("saliency", [one.pixels() for one in found], np.float32)

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """List the tensors."""
        return _list_outputs("saliency", "float32")

    @property
    def summary(self) -> str:
        """Return the share of the foreground."""
        return f"a foreground of {self.values.mean():.0%}"

    def lines(self, labels: Sequence[str] | None) -> list[tuple[str, int]]:
        """Return the share of the foreground."""
        share = float(self.pixels().mean()) if self.share is None else self.share
        return [(f"{share:.1%} of the image is foreground", 0)]

    @property
    def arrays(self) -> list[Array]:
        """Return all arrays that it keeps in memory."""
        return [self.values]

    def to_source(self, back: LetterboxMap) -> Self:
        """Return it in pixels of the upright image."""
        return replace(self, back=back)

    def shared(self, other: TaskResult) -> float | None:
        """Return 1 less the mean absolute difference."""
        if not isinstance(other, SoftMask):
            return None
        # Of 0 and NaN, `max` returns the first.
        return max(0.0, 1 - float(np.abs(self.values - other.values).mean()))

    def pixels(self) -> NDArray[np.float32]:
        """Return the value of each pixel of the upright image, [height, width], 0 to 1."""
        check_there(self.values)
        return self.values if self.back is None else smooth(self.values, self.back)


@dataclass(frozen=True, slots=True, eq=False)
class DepthMap(TaskResult):
    """The depth of each pixel.

    Attributes:
        values: float32 [h, w] over the whole input, finite.
        metres: they are metres; else they have the scale of the model, and mostly grow towards the
            camera.
        corners: outermost cells lie on outermost pixels, see `smooth`.
        back: map to the upright image; None in the model's input.
        ends: the least and the greatest depth of an answer that leaves the map out; None to compute
            them.
    """

    tasks: ClassVar[tuple[str, ...]] = ("depth",)
    field: ClassVar[str] = "depth"

    values: NDArray[np.float32]
    metres: bool = False
    corners: bool = False
    back: LetterboxMap | None = None
    ends: tuple[float, float] | None = None

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the range of the depths, and their map."""
        drawn = options.mask != "none"
        values = self.pixels() if drawn or self.ends is None else self.values
        low, high = self.ends or (float(values.min()), float(values.max()))
        answer: dict[str, Any] = {"min": low, "max": high, "unit": "m" if self.metres else None}
        if drawn:
            file = depth_png(values)
            answer |= {"png": to_base64(file.png), "scale": file.scale, "offset": file.offset}
        return {self.field: answer}

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """Read the depth of each pixel; raises as `TaskResult.from_json`."""
        given = answer[cls.field]
        metres, ends = given["unit"] is not None, (float(given["min"]), float(given["max"]))
        if "png" not in given:
            return cls(_LEFT_OUT.astype(np.float32), metres, ends=ends)
        levels = read_levels(given["png"], read_size(answer))
        values = (levels * float(given["scale"]) + float(given["offset"])).astype(np.float32)
        # A large offset would round it away.
        values[levels == LEVELS] = ends[1]
        return cls(values, metres)

    @classmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert depths: `depth` float32 [n, h, w], and `sizes`."""
        return _map("depth", [one.pixels() for one in found], np.float32)

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """List the tensors."""
        return _list_outputs("depth", "float32")

    @property
    def summary(self) -> str:
        """Return the range of its values."""
        unit = " m" if self.metres else ""
        return f"depths of {self.values.min():.3g} to {self.values.max():.3g}{unit}"

    def lines(self, labels: Sequence[str] | None) -> list[tuple[str, int]]:
        """Return the range of the depths in the upright image."""
        values = self.values if self.ends else self.pixels()
        low, high = self.ends or (float(values.min()), float(values.max()))
        unit = "m" if self.metres else "(the model's own scale)"
        return [(f"depth {low:.3g} to {high:.3g} {unit}", 0)]

    @property
    def arrays(self) -> list[Array]:
        """Return all arrays that it keeps in memory."""
        return [self.values]

    def to_source(self, back: LetterboxMap) -> Self:
        """Return it in pixels of the upright image."""
        return replace(self, back=back)

    def shared(self, other: TaskResult) -> float | None:
        """Return 1 less the mean absolute difference over the mean depth."""
        if not isinstance(other, DepthMap):
            return None
        off = float(np.abs(self.values - other.values).mean())
        mean = float(np.abs(self.values).mean())
        return max(0.0, 1 - off / mean) if mean else float(off == 0)

    def pixels(self) -> NDArray[np.float32]:
        """Return the value of each pixel of the upright image, [height, width]."""
        check_there(self.values)
        if self.back is None:
            return self.values
        return smooth(self.values, self.back, corners=self.corners)


def areas(ids: NDArray[np.uint16]) -> list[ClassArea]:
    """Return the classes of a map, the largest first."""
    counts = np.bincount(ids.ravel(), minlength=NOTHING + 1)[:NOTHING]
    largest_first = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    return [
        ClassArea(class_id, int(counts[class_id]), int(counts[class_id]) / ids.size)
        for class_id in largest_first.tolist()
    ]


def best_of(planes: Iterable[NDArray[np.float32]]) -> NDArray[np.uint16]:
    """Return the number of the plane, all [h, w], with the largest value in each place.

    One after the other: all planes at once can be more than the memory.
    """
    rest = iter(planes)
    best = next(rest).copy()
    numbers = np.zeros(best.shape, np.uint16)
    for number, plane in enumerate(rest, 1):
        better = plane > best
        numbers[better] = number
        np.maximum(best, plane, out=best)
    return numbers


def _mask(ids: NDArray[np.uint16], class_id: int, *, polygon: bool) -> RunLengths | Outlines:
    pixels = (ids == class_id).view(np.uint8)
    left, top, width, height = cv2.boundingRect(pixels)
    bitmap = Bitmap(left, top, pixels[top : top + height, left : left + width])
    height, width = ids.shape
    if polygon:
        return {"size": [height, width], "polygons": polygons(bitmap)}
    return run_lengths(bitmap, (height, width))


def _map(name: str, maps: Sequence[Array], dtype: DTypeLike) -> dict[str, Array]:
    sizes = np.array([each.shape for each in maps], np.int32)
    whole = np.zeros((len(maps), *sizes.max(axis=0)), dtype)
    for row, each in zip(whole, maps, strict=True):
        row[: each.shape[0], : each.shape[1]] = each
    return {name: whole, "sizes": sizes}


def _list_outputs(name: str, dtype: str) -> list[TensorSpec]:
    return [TensorSpec(name, dtype, (-1, -1, -1)), TensorSpec("sizes", "int32", (-1, 2))]
