"""Reads the images that ranges are measured on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from fovea_engines.evaluate.samples import image_files, read_image
from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PreprocessSpec

MAX_IMAGES = 1000
# An image whose channels all have a standard deviation below this is empty.
_FLAT = 2.0


@dataclass(frozen=True, slots=True)
class Images:
    """Image files in the order of use, their preprocessing, and the sha256 over their bytes."""

    files: Sequence[Path]
    spec: PreprocessSpec
    digest: str

    @classmethod
    def of(cls, folder: Path, spec: PreprocessSpec) -> Images:
        """Choose up to 1,000 images of a folder, spread evenly over their names."""
        files = image_files(folder, MAX_IMAGES)
        digest = hashlib.sha256()
        for file in files:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        return cls(files, spec, digest.hexdigest())

    def __len__(self) -> int:
        return len(self.files)

    def rows(self) -> Iterator[Array]:
        """Yield each image as a batch of one, [1, ...], preprocessed as in serving.

        Raises InvalidOption at the end, when more than half of the images are of one colour.
        """
        preprocessor = Preprocessor(self.spec)
        flat = 0
        for file in self.files:
            pixels = read_image(file)
            flat += bool(cv2.meanStdDev(pixels)[1].max() < _FLAT)
            row = np.empty((1, *self.spec.row_shape), self.spec.dtype)
            preprocessor(pixels, row[0])
            yield row
        if flat > len(self.files) / 2:
            raise InvalidOption(
                f"{flat} of {len(self.files)} calibration images are of one colour: the ranges "
                "of an empty scene fit no other; give --calibration images as the camera will "
                "take them"
            )
