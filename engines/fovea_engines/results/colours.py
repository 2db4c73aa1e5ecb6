"""Colours of classes, shades of their instances, and the colour of text on them.

`python -m tools.colours` copies this file into the client, and its tables into the web page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Colour = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

# RGB triples. Each colour was chosen to be as far as possible, in the colour space OKLab, from all
# earlier colours. The distance from the previous ten colours counted half in this choice, so that
# consecutive colours differ most.
PALETTE = bytes.fromhex(
    "1e78ffff781e00ff96007800a50078f078ff96d2ffffd2002db487964b001e6987785af0"
    "ff4b5ac38700ffa5a5c32da5c387e100f0ffb4e10000a500b400000096b44b3cd25a692d"
    "d2695affa52d964b96ffb4ff69d2c39678ff87a500f05ac32d78b44be15a00875ae12d00"
    "ffc387871eb4874b5a00c3ffd2a5ffa5a569c35ae1005ab478f0c3ff789600c33c7887c3"
    "5a8700d20f5aa5694bd2c3ffd2b400a53cc3694b871e5ae1ff87d200d2966996ff5a9669"
    "e13c87a51e4be18769d2e187a569c3876900693cb4e1a5d287c31e69a5d21e87870fa55a"
    "b44b5af05a1ed2b4786978f0a5780f96f087d287a5ff96ff96b4ff00b4c3873cd2966996"
    "78b469e1963c2d87e1c35a00d2d23ce16987878700a596ff78c3e1960096785ab469e196"
)
# Percentage of black or white that is mixed into the colour of a class to get a shade. Consecutive
# shades differ much from each other, and the first two differ most.
SHADES = (0, 50, 25, 70)


def colour(class_id: int, shade: int = 0) -> Colour:
    """Return the colour of a class, or a shade of this colour for one of its instances.

    Args:
        class_id: class id from 0 up. The palette repeats for large ids.
        shade: index in `SHADES`; 0 is the pure colour.
    """
    at = 3 * class_id % len(PALETTE)
    red, green, blue = PALETTE[at : at + 3]
    if not shade:
        return red, green, blue
    weight = SHADES[shade]
    other = ink((red, green, blue))[0] * weight
    red, green, blue = ((each * (100 - weight) + other) // 100 for each in (red, green, blue))
    return red, green, blue


def ink(background: Colour) -> Colour:
    """Return black or white, whichever contrasts more with a colour (WCAG 2 contrast ratio)."""
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
        for v in (channel / 255 for channel in background)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # At a luminance of 0.179, black and white have the same contrast: (L + .05)^2 = 1.05 * .05.
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def shades(class_ids: Sequence[int], boxes: Iterable[Sequence[float]]) -> list[int]:
    """Return the index of a shade for each instance, so that touching instances of a class differ.

    Args:
        class_ids: class of each instance, best instance first.
        boxes: x1 y1 x2 y2 of each instance, in the same order.

    Each instance gets the shade that is rarest among better instances of its class that touch it.
    Worse instances do not influence this choice. Therefore the colours of the remaining instances
    do not change if the instances with low scores are filtered out.
    """
    chosen: list[int] = []
    seen: dict[int, list[tuple[Sequence[float], int]]] = {}
    for class_id, box in zip(class_ids, boxes, strict=True):
        others = seen.setdefault(class_id, [])
        taken = [shade for other, shade in others if _touch(box, other)]
        chosen.append(min(range(len(SHADES)), key=taken.count))
        others.append((box, chosen[-1]))
    return chosen


def _touch(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]
