"""Drawings of results, as a server asks a package for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fovea_engines.detect.new_image import MediaType, Pixels
from fovea_engines.detect.skeleton import Skeleton
from fovea_engines.detect.task_result import TaskResult
from fovea_preprocess.entry_points import Group, load


class Annotate(Protocol):
    """The ability `drawing`."""

    def __call__(
        self,
        found: TaskResult,
        pixels: Pixels,
        labels: Sequence[str] | None,
        skeleton: Skeleton | None,
        media_type: MediaType,
    ) -> bytes:
        """Draw results on an RGB image [h, w, 3], and encode it as a file.

        InvalidOption: the format does not hold sides as long.
        """


def annotate() -> Annotate:
    """Return the function; Unavailable: its package is not there."""
    found: Annotate = load(Group.ABILITIES, "drawing")
    return found
