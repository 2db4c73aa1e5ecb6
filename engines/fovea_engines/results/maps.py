"""Defines results with one value for each pixel: a class, a degree of foreground, or a depth.

Models compute such a map in a grid that is usually coarser than the image. A result keeps the grid
and the position of the image in the grid. It resizes the grid only when pixels are requested.
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
    """A class in an image: its id, its number of pixels, and its fraction of the image, 0 to 1."""

    class_id: int
    pixels: int
    share: float


# Empty map. A result has it if the result was read from a response that contains no map.
_LEFT_OUT = np.zeros((0, 0), np.uint16)


@dataclass(frozen=True, slots=True, eq=False)
class ClassMap(TaskResult):
    """The class of each pixel.

    Attributes:
        ids: uint16 [h, w], best class of each cell. The grid covers the whole input of the model.
        scores: float32 [k, h, w], scores of the k classes that occur in `ids`, in ascending order
            of class ids. They are interpolated before the best class of a pixel is chosen. A class
            that is not the best in any cell gets no pixel. None if the model computes only classes.
        kept: ids of the classes that the request keeps; None if it keeps all classes.
        back: map to the upright image; None if the result is in cells of the model's input.
        counted: classes and their areas, for a result that was read from a response without a map.
            None if the areas are counted in the map.
    """

    tasks: ClassVar[tuple[str, ...]] = ("semantic",)
    field: ClassVar[str] = "semantic"

    ids: NDArray[np.uint16]
    scores: NDArray[np.float32] | None = None
    kept: tuple[int, ...] | None = None
    back: LetterboxMap | None = None
    counted: tuple[ClassArea, ...] | None = None

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the classes as JSON, largest area first.

        The JSON has a mask for each class, or one map for all classes.
        """
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
        """Read the class of each pixel. `TaskResult.from_json` lists the errors.

        If the response has polygons (mask=polygon), the map is approximate: polygons have no holes,
        and very thin regions are missing.
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
        # Draw the largest class first. Its polygon also covers its holes. The smaller classes
        # in these holes are drawn later, over the polygon.
        for each in rows:
            left, top, part = read_bitmap(each["mask"], size)
            window = ids[top : top + part.shape[0], left : left + part.shape[1]]
            window[part.view(np.bool_)] = each["class_id"]
        return cls(ids)

    @classmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert the class maps of n images to tensors.

        Returns:
            ``class_map`` uint16 [n, h, w], 65535 for pixels whose class the request leaves out. h
            and w are the height and width of the largest image; pixels beyond a smaller image are
            0. ``sizes`` int32 [n, 2], height and width of each image.
        """
        return _map("class_map", [one.pixels() for one in found], np.uint16)

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """Return the specs of the tensors that `to_tensors` returns."""
        return _list_outputs("class_map", "uint16")

    @property
    def summary(self) -> str:
        """Return the number of classes, as text."""
        found = np.unique(self._drop_unwanted(self.ids))
        return counted(int((found != NOTHING).sum()), "class")

    @property
    def areas(self) -> Sequence[ClassArea]:
        """Return the classes of the upright image, largest first."""
        return areas(self.pixels()) if self.counted is None else self.counted

    @property
    def arrays(self) -> list[Array]:
        """Return the arrays that the result keeps in memory."""
        return [self.ids] if self.scores is None else [self.ids, self.scores]

    def to_source(self, back: LetterboxMap) -> Self:
        """Return the map for the upright image."""
        return replace(self, back=back)

    def similarity(self, other: TaskResult) -> float | None:
        """Return the fraction of cells that have the same class in both maps, 0 to 1."""
        return float((self.ids == other.ids).mean()) if isinstance(other, ClassMap) else None

    def pixels(self) -> NDArray[np.uint16]:
        """Return the class of each pixel of the upright image, uint16 [height, width].

        Pixels of classes that the request leaves out have the value `NOTHING`. Before `to_source`,
        the method returns the class of each cell of the model's grid.

        Raises:
            InvalidResult: the response left the map out.
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
    """A foreground mask: the degree to which each pixel belongs to the foreground.

    Attributes:
        values: float32 [h, w], 0 (background) to 1 (foreground). The grid covers the whole input of
            the model.
        back: map to the upright image; None if the result is in cells of the model's input.
        share: fraction of the image that is foreground, for a result that was read from a response.
            A response rounds the values or leaves them out, so the exact fraction cannot be
            computed from them. None if the fraction is computed from `values`.
    """

    tasks: ClassVar[tuple[str, ...]] = ("saliency",)
    field: ClassVar[str] = "saliency"

    values: NDArray[np.float32]
    back: LetterboxMap | None = None
    share: float | None = None

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the fraction of foreground, and the mask as a PNG file."""
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
        """Read the foreground of each pixel. `TaskResult.from_json` lists the errors."""
        given = answer[cls.field]
        share = float(given["share"])
        if "png" not in given:
            return cls(_LEFT_OUT.astype(np.float32), share=share)
        levels = read_levels(given["png"], read_size(answer))
        if levels.dtype != np.uint8:
            raise ValueError("a foreground must be an 8-bit image")
        return cls(np.divide(levels, 255, dtype=np.float32), share=share)

    @classmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert foregrounds to tensors: ``saliency`` float32 [n, h, w], 0 to 1, and ``sizes``."""
        return _map("saliency", [one.pixels() for one in found], np.float32)

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """Return the specs of the tensors that `to_tensors` returns."""
        return _list_outputs("saliency", "float32")

    @property
    def summary(self) -> str:
        """Return the fraction of foreground, as text."""
        return f"a foreground of {self.values.mean():.0%}"

    def lines(self, labels: Sequence[str] | None) -> list[tuple[str, int]]:
        """Return one line of text with the fraction of the upright image that is foreground."""
        share = float(self.pixels().mean()) if self.share is None else self.share
        return [(f"{share:.1%} of the image is foreground", 0)]

    @property
    def arrays(self) -> list[Array]:
        """Return the arrays that the result keeps in memory."""
        return [self.values]

    def to_source(self, back: LetterboxMap) -> Self:
        """Return the foreground for the upright image."""
        return replace(self, back=back)

    def similarity(self, other: TaskResult) -> float | None:
        """Return 1 minus the mean absolute difference of both foregrounds, 0 to 1."""
        if not isinstance(other, SoftMask):
            return None
        # If the agreement is NaN, return 0: `max(0.0, nan)` returns its first argument.
        return max(0.0, 1 - float(np.abs(self.values - other.values).mean()))

    def pixels(self) -> NDArray[np.float32]:
        """Return the value of each pixel of the upright image, float32 [height, width], 0 to 1.

        Raises:
            InvalidResult: the response left the map out.
        """
        check_there(self.values)
        return self.values if self.back is None else smooth(self.values, self.back)


@dataclass(frozen=True, slots=True, eq=False)
class DepthMap(TaskResult):
    """The depth of each pixel.

    Attributes:
        values: float32 [h, w], finite. The grid covers the whole input of the model.
        metres: True if the values are in metres. Otherwise the values have the model's own scale,
            and are usually larger for pixels nearer to the camera.
        corners: True if the centres of the outermost cells and pixels coincide. `smooth` explains
            this.
        back: map to the upright image; None if the result is in cells of the model's input.
        ends: smallest and largest depth, for a result that was read from a response without a map.
            None if they are computed from `values`.
    """

    tasks: ClassVar[tuple[str, ...]] = ("depth",)
    field: ClassVar[str] = "depth"

    values: NDArray[np.float32]
    metres: bool = False
    corners: bool = False
    back: LetterboxMap | None = None
    ends: tuple[float, float] | None = None

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the range of the depths, and the map as a PNG file."""
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
        """Read the depth of each pixel. `TaskResult.from_json` lists the errors."""
        given = answer[cls.field]
        metres, ends = given["unit"] is not None, (float(given["min"]), float(given["max"]))
        if "png" not in given:
            return cls(_LEFT_OUT.astype(np.float32), metres, ends=ends)
        levels = read_levels(given["png"], read_size(answer))
        values = (levels * float(given["scale"]) + float(given["offset"])).astype(np.float32)
        # Set the largest depth exactly. If the offset is large, the depth that is computed from the
        # largest level may differ by a rounding error.
        values[levels == LEVELS] = ends[1]
        return cls(values, metres)

    @classmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert depth maps to tensors: ``depth`` float32 [n, h, w], and ``sizes``."""
        return _map("depth", [one.pixels() for one in found], np.float32)

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """Return the specs of the tensors that `to_tensors` returns."""
        return _list_outputs("depth", "float32")

    @property
    def summary(self) -> str:
        """Return the range of the depths, as text."""
        unit = " m" if self.metres else ""
        return f"depths of {self.values.min():.3g} to {self.values.max():.3g}{unit}"

    def lines(self, labels: Sequence[str] | None) -> list[tuple[str, int]]:
        """Return one line with the range of the depths in the upright image."""
        values = self.values if self.ends else self.pixels()
        low, high = self.ends or (float(values.min()), float(values.max()))
        unit = "m" if self.metres else "(the model's own scale)"
        return [(f"depth {low:.3g} to {high:.3g} {unit}", 0)]

    @property
    def arrays(self) -> list[Array]:
        """Return the arrays that the result keeps in memory."""
        return [self.values]

    def to_source(self, back: LetterboxMap) -> Self:
        """Return the depth map for the upright image."""
        return replace(self, back=back)

    def similarity(self, other: TaskResult) -> float | None:
        """Return the agreement with another depth map, 0 to 1.

        The agreement is 1 minus the mean absolute difference divided by the mean absolute depth.
        """
        if not isinstance(other, DepthMap):
            return None
        off = float(np.abs(self.values - other.values).mean())
        mean = float(np.abs(self.values).mean())
        return max(0.0, 1 - off / mean) if mean else float(off == 0)

    def pixels(self) -> NDArray[np.float32]:
        """Return the depth of each pixel of the upright image, float32 [height, width].

        Raises:
            InvalidResult: the response left the map out.
        """
        check_there(self.values)
        if self.back is None:
            return self.values
        return smooth(self.values, self.back, corners=self.corners)


def areas(ids: NDArray[np.uint16]) -> list[ClassArea]:
    """Return the classes of a class map, largest first, without `NOTHING`."""
    counts = np.bincount(ids.ravel(), minlength=NOTHING + 1)[:NOTHING]
    largest_first = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    return [
        ClassArea(class_id, int(counts[class_id]), int(counts[class_id]) / ids.size)
        for class_id in largest_first.tolist()
    ]


def best_of(planes: Iterable[NDArray[np.float32]]) -> NDArray[np.uint16]:
    """Return, for each cell, the index of the plane with the largest value, uint16 [h, w].

    Each plane is [h, w]. The planes are compared one after the other, because all planes of a large
    image together may not fit into memory.
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
