"""Looks at what a built engine finds on the user's images, which live ones are compared with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.labels import Labels
from fovea_engines.evaluation.samples import image_files
from fovea_engines.progress import Progress
from fovea_engines.repository.baseline import Baseline, Found, compared
from fovea_preprocess.errors import FoveaError
from fovea_preprocess.image import brightness, decode_image

# Of more, a distance would hardly be surer; of fewer, chance would explain most of what differs.
_MAX, _MIN = 256, 50


def measure_baseline(
    plan: BuildPlan, engine: Engine, labelled: Labels | None, progress: Progress
) -> Baseline | None:
    """Run an engine on labelled images, or on those of the check; None if there are too few."""
    files, source = _files(plan, labelled)
    if engine.head is None or len(files) < _MIN:
        return None
    chosen = np.linspace(0, len(files) - 1, min(len(files), _MAX)).round().astype(int)
    found: list[Found] = []
    bright: list[float] = []
    with progress.phase("baseline"):
        for file in progress.each([files[i] for i in chosen.tolist()], len(chosen)):
            data = file.read_bytes()
            try:
                image = decode_image(data)
                result = engine.predict(image.pixels)
            except FoveaError:  # what is no image, or gives no numbers, is not what it should be
                continue
            bright.append(brightness(data))
            if (one := compared(result, image.width * image.height)) is not None:
                found.append(one)
    return Baseline.of(source, found, bright)


def _files(plan: BuildPlan, labelled: Labels | None) -> tuple[Sequence[Path], str]:
    if labelled is not None:
        return labelled.paths, labelled.path.name
    folder = plan.check_images
    return ((), "") if folder is None else (image_files(folder, sys.maxsize), folder.name)
