"""Finds the INT8 ranges for a build: measures them on images, or reads the ranges of a version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import onnx
from numpy.typing import NDArray

from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.evaluation.reference import ReferenceSession
from fovea_engines.evaluation.samples import (
    MAX_IMAGES,
    Pixels,
    image_files,
    images_sha256,
    input_row,
    read_image,
    read_rows,
)
from fovea_engines.onnx_graph.wiring import Wiring
from fovea_engines.progress import Progress
from fovea_engines.quantization.calibrators import Histogram
from fovea_engines.quantization.ranges import RANGES_FILE, Origin, Ranges
from fovea_engines.repository.repository import ModelRepository
from fovea_engines.session import Array
from fovea_preprocess.errors import BuildError, Disagreement, InvalidOption, NotFound
from fovea_preprocess.letterbox import fit
from fovea_preprocess.spec import PreprocessSpec
from fovea_preprocess.text import counted

# Smallest recommended number of images. With fewer images, one or two scenes determine all ranges.
_FEW = 32
# An image counts as empty if the standard deviation of each channel is below this limit.
_FLAT = 2.0
# Side in pixels of the thumbnails by which images are compared, and the largest mean difference
# between the thumbnails of two images of the same scene, in grey levels. Compression of an image as
# JPEG with quality 20 changes its thumbnail by 1.1. The two most similar of 128 photographs differ
# by 23.
_THUMBNAIL, _COPY = 16, 2.0
# Largest useful enlargement of an image. An image that is enlarged more has no details of the size
# that the first layers of a model detect.
_MAX_ENLARGED = 4.0
# An image counts as mostly one colour if more than this fraction (`_PLAIN`) of its pixels differs
# by at most `_NEAR` grey levels from the most frequent colour. The fraction is 0.87 for a page of
# text. 4 % of photographs exceed the limit.
_PLAIN, _NEAR = 0.6, 16
_SAMPLED = 128

# Factor by which values of check images may exceed the calibrated range of the model's input.
_CLIPPED = 1.5
# Number of check images whose values are compared with the calibrated range.
_SHOWN = 24


class Variety:
    """Collects statistics about a set of images, to find sets unsuitable for calibration."""

    def __init__(self, spec: PreprocessSpec) -> None:
        self._spec = spec
        self._count = self._flat = self._plain = self._enlarged = 0
        self._smallest: tuple[int, int] | None = None
        self._scenes: list[NDArray[np.int16]] = []

    def add(self, pixels: Pixels) -> None:
        """Add an image, uint8 [height, width, 3]."""
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
        """Check that the images are not mostly empty.

        Raises:
            InvalidOption: more than half of the images have only one colour.
        """
        if self._flat > self._count / 2:
            raise InvalidOption(
                f"{self._flat} of {self._count} calibration images have a single colour, so their "
                "ranges are too narrow for real scenes: calibrate on images from your camera"
            )

    def remarks(self) -> tuple[str, ...]:
        """Return texts about problems of the set that are not reasons to reject it, with advice."""
        images, half, found = counted(self._count, "image"), self._count / 2, []
        if self._count < _FEW:
            found.append(
                f"only {images} to calibrate on: give a hundred or more, which cover the scenes "
                "of your camera"
            )
        if len(self._scenes) < half:
            found.append(
                f"only {len(self._scenes)} of {images} are different, and the others are "
                "near-duplicates: give more scenes, or video frames that are further apart"
            )
        if self._enlarged > half and self._smallest is not None:
            width, height = self._smallest
            found.append(
                f"{self._enlarged} of {images} are enlarged more than {_MAX_ENLARGED:g} times to "
                f"{self._spec.width}x{self._spec.height} (one has {width}x{height} pixels): give "
                "images in the size of your camera"
            )
        if self._plain > half:
            found.append(
                f"{self._plain} of {images} are mostly of one colour, like pages of text: use "
                "images from your camera"
            )
        return tuple(found)


def _share_of_one_colour(pixels: Pixels) -> float:
    steps = (max(1, side // _SAMPLED) for side in pixels.shape[:2])
    rows, columns = (slice(None, None, step) for step in steps)
    few = pixels[rows, columns].reshape(-1, 3)
    cells = (few // _NEAR).astype(np.intp) @ (1, 16, 256)
    usual = np.median(few[cells == np.bincount(cells).argmax()], axis=0)
    return float((np.abs(few - usual) <= _NEAR).all(axis=1).mean())


@dataclass(frozen=True, slots=True)
class Images:
    """The calibration images of a build.

    Attributes:
        files: paths of the image files, in the order of their use.
        spec: preprocessing of the images.
        digest: SHA-256 of the bytes of all files in hexadecimal.
    """

    files: Sequence[Path]
    spec: PreprocessSpec
    digest: str

    @classmethod
    def of(cls, folder: Path, spec: PreprocessSpec) -> Images:
        """Choose up to 1,000 images of a directory, evenly spaced in the order of their names."""
        files = image_files(folder, MAX_IMAGES)
        return cls(files, spec, images_sha256(files))

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, variety: Variety) -> Iterator[Array]:
        """Yield each image as a batch [1, ...], preprocessed like on a server.

        Each image is also added to `variety`.
        """
        for file in self.files:
            pixels = read_image(file)
            variety.add(pixels)
            yield input_row(self.spec, pixels)


def find_ranges(
    plan: BuildPlan, prepared: PreparedModel, progress: Progress
) -> tuple[Ranges, bool]:
    """Return the INT8 ranges for a plan.

    Ranges of an earlier build are used again only if the model, the preprocessing, the images,
    their order and the method are the same.

    Returns:
        The ranges, and whether an earlier build measured them.

    Raises:
        InvalidOption: the plan has no calibration, or its calibration does not fit the model.
        Disagreement: the values of check images exceed the calibrated range of the model's input.
    """
    calibration = plan.require_calibration()
    with progress.phase("calibrate"):
        if calibration.is_file():
            ranges, reused = _read_ranges(calibration, plan, prepared), True
        else:
            images = Images.of(calibration, prepared.preprocess)
            origin = _origin(plan, prepared, images.digest)
            known = _reuse_ranges(plan, prepared, origin, progress)
            reused = known is not None
            ranges = known or calibrate(prepared.graph, images, origin, progress)
        _check_clipping(ranges, plan, prepared)
    for remark in ranges.remarks:
        progress.note(f"calibration: {remark}")
    return ranges, reused


def _origin(plan: BuildPlan, prepared: PreparedModel, images: str) -> Origin:
    return Origin(prepared.sha256, prepared.preprocess.digest, images, plan.calibrator)


def _read_ranges(file: Path, plan: BuildPlan, prepared: PreparedModel) -> Ranges:
    given = Ranges.read(file)
    if difference := given.origin.difference(_origin(plan, prepared, given.origin.images)):
        raise InvalidOption(
            f"{file} was measured with {difference}: give --calibration the folder of images, to "
            "measure again"
        )
    if missing := _find_missing(given, prepared):
        raise InvalidOption(
            f"{file} has no range for {missing!r}: give --calibration the folder of images, to "
            "measure again"
        )
    return given


def _reuse_ranges(
    plan: BuildPlan, prepared: PreparedModel, origin: Origin, progress: Progress
) -> Ranges | None:
    repository = ModelRepository(plan.repository)
    for version in reversed(repository.versions(plan.name)):
        with suppress(NotFound, InvalidOption):
            known = Ranges.read(repository.folder(plan.name, version) / RANGES_FILE)
            if known.origin == origin and _find_missing(known, prepared) is None:
                progress.note(
                    f"the calibration of version {version} is reused, because model and images "
                    "are the same"
                )
                return known
    return None


def _find_missing(ranges: Ranges, prepared: PreparedModel) -> str | None:
    """Return the name of a tensor without a range, or None if all tensors have ranges.

    Ranges may be missing after an update of onnxslim, which may rename tensors.
    """
    return next((t for t in measured_tensors(prepared.graph) if t not in ranges.tensors), None)


def _check_clipping(ranges: Ranges, plan: BuildPlan, prepared: PreparedModel) -> None:
    rows = read_rows(prepared.preprocess, plan.images, _SHOWN)
    reached = max(float(np.abs(row).max()) for _, row in rows)
    seen = max(map(abs, ranges.tensors[prepared.inputs[0].name]))
    if reached > _CLIPPED * seen:
        raise Disagreement(
            f"calibration images reached {seen:.3g} at the model's input, but served images can "
            f"reach {reached:.3g}. The calibration images were too dark, or were preprocessed in "
            "another way: calibrate on images from your camera. If all images from your camera "
            "are dark, also give them as --images"
        )


def calibrate(model: onnx.ModelProto, images: Images, origin: Origin, progress: Progress) -> Ranges:
    """Run the float model on all images, and choose a range for the input of each layer.

    The range of the model's input is always measured. The memory use does not depend on the number
    of images: one image at a time is in memory, and one histogram per tensor.

    Raises:
        BuildError: the model computes NaN or infinite values.
        InvalidOption: more than half of the images have only one colour.
    """
    names = measured_tensors(model)
    seen = {name: Histogram() for name in names}
    reference = ReferenceSession(model, names)
    wanted = [name for name in names if name != model.graph.input[0].name]
    variety = Variety(images.spec)
    for row in progress.each(images.rows(variety), len(images)):
        values = dict(zip(wanted, reference.run(wanted, row), strict=True))
        for name in names:
            try:
                seen[name].add(values.get(name, row))
            except BuildError as error:
                raise BuildError(
                    f"calibration stopped at tensor {name!r}: {error} in ONNX Runtime: build with "
                    "--precision fp32, or check that --preprocess matches the training"
                ) from error
    variety.check()
    found = {name: one.range(origin.method) for name, one in seen.items()}
    return Ranges(origin, len(images), found, variety.remarks())


def measured_tensors(model: onnx.ModelProto) -> list[str]:
    """Return the names of the tensors that need a range: the inputs of the model and layers."""
    wiring = Wiring(model)
    taken = (node.input[0] for node in (*wiring.layers(), *wiring.projections()))
    return list(dict.fromkeys([model.graph.input[0].name, *taken]))
