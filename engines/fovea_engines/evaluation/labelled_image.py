"""Defines an image and the objects that people marked on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.evaluation.samples import Pixels, read_image
from fovea_preprocess.errors import InvalidOption, NotFound

Outline = list[list[float]] | dict[str, Any]
"""Polygons in pixels, x1 y1 x2 y2 ..., or COCO's run lengths."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledImage:
    """An image and its labelled objects. Boxes are pixels of the upright image, not clipped to it.

    Attributes:
        width: of the upright image, pixels, as is `height`.
        boxes: float32 [n, 4], corners x1 y1 x2 y2.
        class_ids: int32 [n].
        crowd: bool [n]; finding a crowd counts neither for nor against a detector.
        areas: float32 [n], square pixels: of the object where the labels have it, else of its box.
        rotated: float32 [n, 5], regular rows of `rotated.py`; None where the labels have boxes
            only.
        outlines: of each object, None where the labels do not have all.
        keypoints: float32 [n, k, 3], x y in pixels and COCO's visibility, 0 where it is not marked;
            None without any.
    """

    path: Path
    width: int
    height: int
    boxes: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    crowd: NDArray[np.bool_]
    areas: NDArray[np.float32]
    rotated: NDArray[np.float32] | None = None
    outlines: tuple[Outline, ...] | None = None
    keypoints: NDArray[np.float32] | None = None

    def take(self, chosen: NDArray[np.intp]) -> Self:
        """Return the image with the objects of these indices alone."""
        outlines = None if self.outlines is None else tuple(self.outlines[i] for i in chosen)
        return replace(
            self,
            boxes=self.boxes[chosen],
            class_ids=self.class_ids[chosen],
            crowd=self.crowd[chosen],
            areas=self.areas[chosen],
            rotated=None if self.rotated is None else self.rotated[chosen],
            outlines=outlines,
            keypoints=None if self.keypoints is None else self.keypoints[chosen],
        )

    def data(self) -> bytes:
        """Return the encoded image; NotFound where the file cannot be read."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise NotFound(f"the image {self.path} cannot be read ({error.strerror})") from error

    def pixels(self) -> Pixels:
        """Return the decoded image, uint8 [height, width, 3], RGB, upright, as it was labelled."""
        pixels = read_image(self.path)
        self.check_size(pixels.shape[1], pixels.shape[0])
        return pixels

    def check_size(self, width: int, height: int) -> None:
        """Refuse, as InvalidOption, a decoded, upright image of another size than its labels'."""
        check_size(self.path, width, height, self.width, self.height)


def check_size(path: Path, width: int, height: int, label_width: int, label_height: int) -> None:
    """Refuse, as InvalidOption, an upright image whose labels are for one of another size."""
    if (width, height) != (label_width, label_height):
        raise InvalidOption(
            f"{path} is {width} x {height} pixels upright, and its labels are for {label_width} x "
            f"{label_height}: give the images that were labelled, and labels of the image as its "
            "EXIF orientation shows it"
        )


def check_box(where: str, box: tuple[float, float, float, float], width: int, height: int) -> None:
    """Refuse, as InvalidOption, a box whose centre is outside its image; `where` is its place.

    Edges may lie outside, because many datasets label what the frame cuts off. Boxes without area
    pass, because well-known datasets have some: COCO counts them as missed.
    """
    x1, y1, x2, y2 = box
    if not (0 <= (x1 + x2) / 2 <= width and 0 <= (y1 + y2) / 2 <= height):
        corners = " ".join(f"{corner:g}" for corner in box)
        raise InvalidOption(
            f"{where}: the box [{corners}] lies outside its image of {width} x {height} pixels: "
            "correct or remove it"
        )
