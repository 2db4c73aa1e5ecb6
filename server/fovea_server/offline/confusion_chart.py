"""Draws a confusion matrix as SVG."""

from __future__ import annotations

from html import escape

from fovea_server.offline.confusion import Confusion
from fovea_server.svg import document, text

_CELL = 26
_TOP, _EDGE = 48, 16
# Width of a letter in pixels, and the largest number of letters of a name; longer names are cut.
_LETTER, _LONGEST = 7.2, 24
_BLUE = "#0072b2"


def draw(title: str, found: Confusion) -> str:
    """Draw a row for each labelled class and a column for each found class.

    A cell is darker if it has a larger fraction of its row's objects or images.
    """
    names = found.names
    shown = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in names]
    margin = round(max(map(len, shown)) * _LETTER) + 2 * _EDGE
    left, top, side = margin + 20, _TOP + margin, len(names) * _CELL
    parts = [
        "<style>.count{font-size:11px;text-anchor:middle}</style>",
        text(_EDGE, 28, title, 'class="title"'),
        text(left, top - margin + 18, f"found as ({_describe_unit(found)})"),
        text(16, top + 4, "labelled as", f'transform="rotate(-90 16 {top + 4})" text-anchor="end"'),
    ]
    for place, name in enumerate(shown):
        middle = place * _CELL + _CELL / 2
        at = left + middle + 4
        parts.append(text(left - 6, top + middle + 4, name, 'text-anchor="end"'))
        parts.append(text(at, top - 6, name, f'transform="rotate(-90 {at:g} {top - 6})"'))
    for row, label in enumerate(names):
        counts = found.counts.get(label, {})
        total = sum(counts.values())
        for column, other in enumerate(names):
            if count := counts.get(other, 0):
                x, y, share = left + column * _CELL, top + row * _CELL, count / total
                about = f"{label}, found as {other}: {count} of {total}"
                parts.append(
                    f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" fill="{_BLUE}" '
                    f'fill-opacity="{0.06 + 0.94 * share:.2f}">'
                    f"<title>{escape(about)}</title></rect>"
                )
                light = ' style="fill:#fff"' if share > 0.5 else ""
                middle = x + _CELL / 2
                parts.append(text(middle, y + _CELL / 2 + 4, f"{count}", f'class="count"{light}'))
    parts += [
        f'<path d="M{left},{top + at}h{side}M{left + at},{top}v{side}" stroke="#e4e4e4"/>'
        for at in range(0, side + 1, _CELL)
    ]
    width = max(left + side + _EDGE, round(len(title) * 9) + 2 * _EDGE)
    return document(title, width, top + side + _EDGE, parts)


def _describe_unit(found: Confusion) -> str:
    if found.confidence is None:
        return f"{found.unit}s"
    return f"{found.unit}s, confidence {found.confidence:g} and more, overlap .50"
