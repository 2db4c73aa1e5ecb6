"""Finds the ranges of a build: measures them on images, or reads those of an earlier version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.evaluation.reference import ReferenceSession
from fovea_engines.evaluation.samples import (
    MAX_IMAGES,
    image_files,
    images_sha256,
    input_row,
    read_image,
    read_rows,
)
from fovea_engines.onnx_graph.wiring import Wiring
from fovea_engines.progress import Progress
from fovea_engines.quantization.histogram import Histogram
from fovea_engines.quantization.ranges import RANGES_FILE, Origin, Ranges
from fovea_engines.quantization.variety import Variety
from fovea_engines.repository.figures import Method
from fovea_engines.repository.repository import ModelRepository
from fovea_engines.session import Array
from fovea_preprocess.errors import BuildError, Disagreement, InvalidOption, NotFound
from fovea_preprocess.spec import PreprocessSpec

# The serving input may exceed the calibrated range by this factor.
_CLIPPED = 1.5
# Number of images used to find the range of the serving input.
_SHOWN = 24
# All but one value in a million: objects are rare, and so are the activations that detect them.
PERCENTILE = 0.999999


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
        return cls(files, spec, images_sha256(files))

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, variety: Variety) -> Iterator[Array]:
        """Yield each image as a batch of one, [1, ...], preprocessed as in serving.

        It is also added to what the images show.
        """
        for file in self.files:
            pixels = read_image(file)
            variety.add(pixels)
            yield input_row(self.spec, pixels)


def find_ranges(
    plan: BuildPlan, prepared: PreparedModel, progress: Progress
) -> tuple[Ranges, bool]:
    """Return the ranges of a plan, and True if they were measured before.

    Measured ranges are reused only when model, preprocessing, images, their order and the method
    are all the same.
    """
    calibration = plan.require_calibration()
    with progress.phase("calibrate"):
        if calibration.is_file():
            ranges, reused = _read_ranges(calibration, plan, prepared), True
        else:
            images = Images.of(calibration, prepared.preprocess)
            origin = _origin(plan, prepared, images.digest)
            known = _known_ranges(plan, prepared, origin, progress)
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
            f"{file} was measured with {difference}: give --calibration the folder of images, "
            "to measure anew"
        )
    if missing := _missing(given, prepared):
        raise InvalidOption(
            f"{file} has no range of {missing!r}: give --calibration the folder of images, to "
            "measure anew"
        )
    return given


def _known_ranges(
    plan: BuildPlan, prepared: PreparedModel, origin: Origin, progress: Progress
) -> Ranges | None:
    repository = ModelRepository(plan.repository)
    for version in reversed(repository.versions(plan.name)):
        with suppress(NotFound, InvalidOption):
            known = Ranges.read(repository.folder(plan.name, version) / RANGES_FILE)
            if known.origin == origin and _missing(known, prepared) is None:
                progress.note(f"calibration of version {version} is used again: nothing differs")
                return known
    return None


def _missing(ranges: Ranges, prepared: PreparedModel) -> str | None:
    """Return a tensor without a range: another onnxslim version may rename tensors."""
    return next((t for t in measured_tensors(prepared.graph) if t not in ranges.tensors), None)


def _check_clipping(ranges: Ranges, plan: BuildPlan, prepared: PreparedModel) -> None:
    rows = read_rows(prepared.preprocess, plan.images, _SHOWN)
    reached = max(float(np.abs(row).max()) for _, row in rows)
    seen = max(map(abs, ranges.tensors[prepared.inputs[0].name]))
    if reached > _CLIPPED * seen:
        raise Disagreement(
            f"calibration saw values up to {seen:.3g} at the model's input, and images that are "
            f"served hold {reached:.3g}: it was measured on dark images, or with another "
            "preprocessing; give --calibration images as the camera will take them, and the "
            "same in --images if they are that dark"
        )


def calibrate(model: onnx.ModelProto, images: Images, origin: Origin, progress: Progress) -> Ranges:
    """Run the float network on every image and choose a range for each layer's input.

    The range of the network's input is always measured. Memory does not grow with the number of
    images: it holds one image at a time, and one histogram per tensor.
    """
    names = measured_tensors(model)
    seen = {name: Histogram() for name in names}
    reference = ReferenceSession(model, names)
    asked = [name for name in names if name != model.graph.input[0].name]
    variety = Variety(images.spec)
    for row in progress.each(images.rows(variety), len(images)):
        values = dict(zip(asked, reference.run(asked, row), strict=True))
        for name in names:
            try:
                seen[name].add(values.get(name, row))
            except BuildError as error:
                raise BuildError(
                    f"calibration stopped at tensor {name!r}: {error}, as ONNX Runtime computes "
                    "it; build with --precision fp32, or see that --preprocess is as the model "
                    "was trained"
                ) from error
    variety.check()
    found = {name: _range(one, origin.method) for name, one in seen.items()}
    return Ranges(origin, len(images), found, variety.remarks())


def measured_tensors(model: onnx.ModelProto) -> list[str]:
    """Return the names of the tensors that need a range: the inputs of network and layers."""
    wiring = Wiring(model)
    taken = (node.input[0] for node in (*wiring.layers(), *wiring.projections()))
    return list(dict.fromkeys([model.graph.input[0].name, *taken]))


def _range(seen: Histogram, method: Method) -> tuple[float, float]:
    match method:
        case "minmax":
            return seen.low, seen.high
        case "percentile":
            bound = seen.percentile(PERCENTILE)
        case "entropy":
            bound = seen.entropy()
        case "mse":
            bound = seen.squared_error()
    return max(seen.low, -bound), min(seen.high, bound)
