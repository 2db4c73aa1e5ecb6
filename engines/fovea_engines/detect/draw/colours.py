"""Colours of classes, and of the letters on them."""

from __future__ import annotations

import colorsys

Colour = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""


def colour(class_id: int) -> Colour:
    """Return the RGB colour of a class. Golden-ratio steps of hue keep neighbouring ids apart."""
    hue = (0.58 + class_id * 0.618033988749895) % 1.0
    # Every third class is darker: 80 classes share the circle.
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, (1.0, 0.85, 0.7)[class_id % 3])
    return round(red * 255), round(green * 255), round(blue * 255)


def ink(background: Colour) -> Colour:
    """Return black or white, whichever contrasts more with a colour (WCAG 2 contrast ratio)."""
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
        for v in (channel / 255 for channel in background)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # Contrast with black equals contrast with white where (l + .05)^2 = 1.05 * .05.
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)
