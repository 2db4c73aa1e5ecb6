"""Draws the classes of an image: a list in its top left corner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.class_names import shown_name
from fovea_engines.detect.classes import Classes
from fovea_engines.detect.draw.colours import colour
from fovea_engines.detect.draw.tags import Tag, draw_tag, letter
from fovea_engines.detect.skeleton import Skeleton

# Letters are this much of the image's shorter side, but legible.
_SCALE, _SMALLEST = 0.0011, 0.35
# More lines than these would hide the image.
_LINES = 10
# A lower score would be written as 0.00.
_LEAST_SCORE = 0.005


def draw_classes(
    found: Classes,
    pixels: NDArray[np.uint8],
    labels: Sequence[str] | None,
    skeleton: Skeleton | None = None,
) -> NDArray[np.uint8]:
    """Draw classes as `draw` does: the best ten, as many as fit, and none that has 0.00."""
    canvas = np.ascontiguousarray(pixels).copy()
    height, width = canvas.shape[:2]
    scale = max(_SMALLEST, min(height, width) * _SCALE)
    top = 0
    best = list(zip(found.class_ids.tolist(), found.scores.tolist(), strict=True))[:_LINES]
    for class_id, score in best:
        if score < _LEAST_SCORE:
            break
        line = letter(f"{shown_name(labels, class_id)} {score:.2f}", scale)
        if top + line.height > height:
            break
        shown = line._replace(width=min(line.width, width))
        draw_tag(canvas, Tag(shown, 0, top), colour(class_id))
        top += line.height
    return canvas
