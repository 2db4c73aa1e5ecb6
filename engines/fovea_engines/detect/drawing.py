"""Drawings of results, as a build and a server ask a package for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fovea_engines.detect.new_image import MediaType, Pixels
from fovea_engines.detect.skeleton import Skeleton
from fovea_engines.detect.task_result import TaskResult
from fovea_preprocess.entry_points import Group, load


class Drawing(Protocol):
    """A module with these functions, by the ability `drawing`. Images are RGB, [h, w, 3]."""

    def draw(
        self,
        found: TaskResult,
        pixels: Pixels,
        labels: Sequence[str] | None,
        skeleton: Skeleton | None = None,
    ) -> Pixels:
        """Return a copy of an image with the results of a model drawn on it."""

    def annotated(
        self,
        found: TaskResult,
        pixels: Pixels,
        labels: Sequence[str] | None,
        skeleton: Skeleton | None,
        media_type: MediaType,
    ) -> bytes:
        """Draw, and encode as a file."""

    def captioned(self, image: Pixels, text: str) -> Pixels:
        """Put a caption above an image."""

    def encode(self, pixels: Pixels, media_type: MediaType) -> bytes:
        """Encode an image as a file; InvalidOption: the format does not hold sides as long."""


def load_drawing() -> Drawing:
    """Return the functions; Unavailable: their package is not there."""
    found: Drawing = load(Group.ABILITIES, "drawing")
    return found
