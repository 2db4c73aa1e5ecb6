"""Looks at calibration images: what they lack is refused, or remarked upon."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.evaluation.samples import Pixels
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.letterbox import fit
from fovea_preprocess.plural import counted
from fovea_preprocess.spec import PreprocessSpec

# With fewer images, one or two scenes decide every range.
_FEW = 32
# An image whose channels all have a standard deviation below this is empty.
_FLAT = 2.0
# Side of the thumbnails that are compared, and the mean difference of their values up to which they
# are of one scene: JPEG at quality 20 makes 1.1, and the closest of 128 photographs are 23 apart.
_THUMBNAIL, _COPY = 16, 2.0
# What is enlarged more has no detail of the size that the first layers look for.
_MAX_ENLARGED = 4.0
# Share of pixels that are, but for `_NEAR`, of the most frequent colour: .87 of a page of text, and
# more than this of 4 % of photographs.
_PLAIN, _NEAR = 0.6, 16
_SAMPLED = 128


class Variety:
    """Counts what a set of images shows; they are added one after the other."""

    def __init__(self, spec: PreprocessSpec) -> None:
        self._spec = spec
        self._count = self._flat = self._plain = self._enlarged = 0
        self._smallest: tuple[int, int] | None = None
        self._scenes: list[NDArray[np.int16]] = []

    def add(self, pixels: Pixels) -> None:
        """Look at an image."""
        self._count += 1
        self._flat += bool(cv2.meanStdDev(pixels)[1].max() < _FLAT)
        self._plain += _share_of_one_colour(pixels) > _PLAIN
        height, width = pixels.shape[:2]
        place = fit(self._spec, width, height)
        if max(place.scale_x, place.scale_y) > _MAX_ENLARGED:
            self._enlarged += 1
            self._smallest = min(self._smallest or (width, height), (width, height))
        size = _THUMBNAIL, _THUMBNAIL
        scene = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA).astype(np.int16)
        if not any(np.abs(scene - known).mean() <= _COPY for known in self._scenes):
            self._scenes.append(scene)

    def check(self) -> None:
        """Refuse, as InvalidOption, a set of which more than half is of one colour."""
        if self._flat > self._count / 2:
            raise InvalidOption(
                f"{self._flat} of {self._count} calibration images are of one colour: the ranges "
                "of an empty scene fit no other; give --calibration images as the camera will "
                "take them"
            )

    def remarks(self) -> tuple[str, ...]:
        """Return what a set lacks that is no reason to refuse it, and what to do."""
        images, half, found = counted(self._count, "image"), self._count / 2, []
        if self._count < _FEW:
            found.append(
                f"only {images} to calibrate on: a hundred or more cover what the camera sees"
            )
        if len(self._scenes) < half:
            found.append(
                f"only {len(self._scenes)} of {images} differ, and the others are copies or nearly "
                "so: give more scenes, and of a video frames that are farther apart"
            )
        if self._enlarged > half and self._smallest is not None:
            width, height = self._smallest
            found.append(
                f"{self._enlarged} of {images} are enlarged more than {_MAX_ENLARGED:g} times to "
                f"{self._spec.width}x{self._spec.height} (one has {width}x{height} pixels): give "
                "them as large as the camera takes them"
            )
        if self._plain > half:
            found.append(
                f"{self._plain} of {images} are mostly of one colour, as pages of text are: unless "
                "the camera sees such, give what it sees"
            )
        return tuple(found)


def _share_of_one_colour(pixels: Pixels) -> float:
    steps = (max(1, side // _SAMPLED) for side in pixels.shape[:2])
    rows, columns = (slice(None, None, step) for step in steps)
    few = pixels[rows, columns].reshape(-1, 3)
    cells = (few // _NEAR).astype(np.intp) @ (1, 16, 256)
    usual = np.median(few[cells == np.bincount(cells).argmax()], axis=0)
    return float((np.abs(few - usual) <= _NEAR).all(axis=1).mean())
