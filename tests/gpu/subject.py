"""A detector that is built on a GPU, and the images of it."""

from dataclasses import dataclass
from pathlib import Path

ROWS = 4
"""Of a batch."""


@dataclass
class Subject:
    """A detector, with images to measure ranges on and others to judge it on."""

    model: Path
    calibration: Path
    images: Path
