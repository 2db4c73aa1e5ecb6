"""Defines an image with its labelled objects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.evaluation.samples import Pixels, read_image
from fovea_preprocess.errors import InvalidOption, NotFound

Outline = list[list[float]] | dict[str, Any]
"""The outline of an object: polygons in pixels, x1 y1 x2 y2 ..., or COCO's run lengths."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledImage:
    """An image with its labelled objects. Boxes are in pixels of the upright image, not clipped.

    Attributes:
        path: file of the image.
        width: width of the upright image in pixels.
        height: height of the upright image in pixels.
        boxes: float32 [n, 4], corners x1 y1 x2 y2 of each object's box.
        class_ids: int32 [n], class of each object.
        crowd: bool [n], True if the label is a crowd of objects. Detections in a crowd are neither
            right nor wrong.
        areas: float32 [n], area of each object in square pixels. If the labels do not contain it,
            the area of the box.
        rotated: float32 [n, 5], rotated boxes as regular rows, which `rotated.py` defines; None if
            the labels have only upright boxes.
        outlines: outline of each object; None if some objects have no outline.
        keypoints: float32 [n, k, 3], x y in pixels and COCO's visibility, which is 0 if the
            keypoint is not labelled; None if there are no keypoints.
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
        """Return the image with only the objects at these indices."""
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
        """Return the bytes of the image file.

        Raises:
            NotFound: the file cannot be read.
        """
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise NotFound(f"the image {self.path} cannot be read ({error.strerror})") from error

    def pixels(self) -> Pixels:
        """Return the decoded image, uint8 RGB [height, width, 3], upright.

        Raises:
            InvalidOption: the size of the image differs from the size in the labels.
            InvalidImage: the file is damaged.
        """
        pixels = read_image(self.path)
        self.check_size(pixels.shape[1], pixels.shape[0])
        return pixels

    def check_size(self, width: int, height: int) -> None:
        """Check the size of the decoded, upright image against its labels.

        Raises:
            InvalidOption: the sizes differ.
        """
        check_size(self.path, width, height, self.width, self.height)


def check_size(path: Path, width: int, height: int, label_width: int, label_height: int) -> None:
    """Check the size of an upright image against the size in its labels.

    Raises:
        InvalidOption: the sizes differ.
    """
    if (width, height) != (label_width, label_height):
        raise InvalidOption(
            f"{path} has {width} x {height} pixels after its EXIF orientation is applied, but its "
            f"labels were made for {label_width} x {label_height}: give the images that were "
            "labelled, and labels that refer to the upright image"
        )


def check_box(where: str, box: tuple[float, float, float, float], width: int, height: int) -> None:
    """Check that the centre of a box is inside its image.

    The edges of a box may be outside, because many datasets label the hidden parts of objects
    beyond the image. Boxes without an area are accepted, because well-known datasets contain some.
    COCO's evaluation counts them as missed objects.

    Args:
        where: place in the labels, for the error message.
        box: corners x1 y1 x2 y2 in pixels.
        width: width of the image in pixels.
        height: height of the image in pixels.

    Raises:
        InvalidOption: the centre is outside the image.
    """
    x1, y1, x2, y2 = box
    if not (0 <= (x1 + x2) / 2 <= width and 0 <= (y1 + y2) / 2 <= height):
        corners = " ".join(f"{corner:g}" for corner in box)
        raise InvalidOption(
            f"{where}: the box [{corners}] lies outside its image of {width} x {height} pixels: "
            "correct or remove it"
        )
