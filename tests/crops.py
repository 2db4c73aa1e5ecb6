"""Images without end: parts of the demo's scenes."""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from tests.conftest import DEMO


def crops(
    seed: int, count: int, sides: tuple[float, float] = (0.6, 0.9)
) -> Iterator[NDArray[np.uint8]]:
    """Parts of the scenes, BGR, whose sides are a share of theirs between two."""
    rng = np.random.default_rng(seed)
    scenes = [cv2.imread(str(DEMO / f"scene-{number}.jpg")) for number in (1, 2)]
    for number in range(count):
        scene = scenes[number % 2]
        whole = np.array(scene.shape[:2])
        part = (whole * rng.uniform(*sides)).astype(int)
        top, left = (rng.uniform(size=2) * (whole - part)).astype(int)
        yield np.ascontiguousarray(scene[top : top + part[0], left : left + part[1]])


def jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """The file of an image."""
    return cv2.imencode(".jpg", pixels)[1].tobytes()


def write_crops(folder: Path, count: int) -> Path:
    """Write such parts into a new folder, for a build."""
    folder.mkdir()
    for number, pixels in enumerate(crops(0, count)):
        (folder / f"{number}.jpg").write_bytes(jpeg(pixels))
    return folder
