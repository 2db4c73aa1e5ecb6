"""Draws a drift report as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from fovea_server.monitoring.drift import DriftQuantity, DriftReport
from fovea_server.svg import document, text

_EDGE, _LABELS, _BARS, _BAR = 16, 150, 420, 9
_ROW, _TITLE = 2 * _BAR + 8, 40
_GREY, _BLUE = "#9a9a9a", "#0072b2"


def draw(report: DriftReport) -> str:
    """Draw two bars for each bin: the fractions of the build's images and of the live images."""
    title = f"{report.model}, version {report.version}: live images and those of its build"
    parts = [
        text(_EDGE, 28, title, 'class="title"'),
        *_bar(_EDGE, 44, 14, _GREY, ""),
        text(_EDGE + 20, 53, f"{report.images} images of {report.images_from}"),
        *_bar(_EDGE + _LABELS + 100, 44, 14, _BLUE, ""),
        text(_EDGE + _LABELS + 120, 53, "live"),
    ]
    top = 64
    for each in report.quantities:
        parts += _chart(each, top)
        top += _TITLE + _ROW * len(each.bins)
    return document(title, 2 * _EDGE + _LABELS + _BARS + 50, top + _EDGE, parts)


def _chart(of: DriftQuantity, top: int) -> Iterator[str]:
    distance = "too few live images" if of.distance is None else f"distance {of.distance:.2f}"
    heading = f"{of.quantity}: {distance}, {of.images} live images"
    yield text(_EDGE, top + 28, heading, 'style="font-weight:600"')
    left = _EDGE + _LABELS
    for number, each in enumerate(of.bins):
        y = top + _TITLE + number * _ROW
        yield text(left - 8, y + _BAR + 4, each.bin[:20], 'text-anchor="end"')
        for place, share, colour in ((y, each.expected, _GREY), (y + _BAR, each.live, _BLUE)):
            yield from _bar(
                left, place, round(share * _BARS, 1), colour, f"{each.bin}: {share:.1%}"
            )


def _bar(left: float, top: float, width: float, colour: str, about: str) -> Iterator[str]:
    yield (
        f'<rect x="{left}" y="{top}" width="{width}" height="{_BAR}" fill="{colour}">'
        f"<title>{escape(about)}</title></rect>"
    )
