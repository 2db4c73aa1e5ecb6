"""Draws line and scatter charts as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fovea_server.svg import document, text

# Colours that colour-blind people can distinguish (Okabe and Ito, 2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 48, 56
_STYLE = ".axis{stroke:#888;fill:none}.grid{stroke:#e4e4e4}"


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a chart.

    Attributes:
        label: name of the axis, with the unit.
        ticks: values with a grid line, ascending. The axis begins at the first tick and ends at the
            last tick.
        texts: labels of the ticks; by default the values.
    """

    label: str
    ticks: Sequence[float]
    texts: Sequence[str] | None = None

    @property
    def labelled(self) -> Iterator[tuple[float, str]]:
        """Pairs of a tick's value and its label."""
        return zip(self.ticks, self.texts or map("{:g}".format, self.ticks), strict=True)

    def share(self, value: float) -> float:
        """Return the position of a value on the axis: 0 at the first tick, 1 at the last tick."""
        return (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind, which are joined by a line or drawn separately."""

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = True


def chart(
    title: str, x: Axis, y: Axis, series: Sequence[Series], limit: float | None = None
) -> str:
    """Draw a chart as SVG.

    Args:
        title: title of the chart.
        x: horizontal axis.
        y: vertical axis.
        series: the series of points, in the order of the legend.
        limit: value of x at which a vertical line is drawn; None for no line.

    Returns:
        An SVG document.
    """
    parts = [
        f"<style>{_STYLE}</style>",
        text(_LEFT, 28, title, 'class="title"'),
        *_axes(x, y),
    ]
    if limit is not None:
        at = _x(x, limit)
        bottom = _HEIGHT - _BOTTOM
        dashed = 'stroke="#888" stroke-dasharray="5 4"'
        parts.append(f'<line x1="{at}" x2="{at}" y1="{_TOP}" y2="{bottom}" {dashed}/>')
        parts.append(text(at, _TOP - 4, f"{limit:g}", 'text-anchor="middle"'))
    for number, each in enumerate(series):
        parts += _draw_series(x, y, each, _COLOURS[number % len(_COLOURS)], number)
    return document(title, _WIDTH, _HEIGHT, parts)


def round_ticks(most: float) -> list[float]:
    """Return ticks from 0 to at least `most`, with a step of 1, 2 or 5 times a power of ten."""
    least = most / 6 or 1.0
    power = 10.0 ** math.floor(math.log10(least))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= least)
    return [round(number * step, 12) for number in range(max(1, math.ceil(most / step)) + 1)]


def _axes(x: Axis, y: Axis) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for tick, label in y.labelled:
        at = _y(y, tick)
        yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at}" y2="{at}"/>'
        yield text(_LEFT - 8, at + 4, label, 'text-anchor="end"')
    for tick, label in x.labelled:
        at = _x(x, tick)
        yield f'<line class="grid" x1="{at}" x2="{at}" y1="{_TOP}" y2="{bottom}"/>'
        yield text(at, bottom + 20, label, 'text-anchor="middle"')
    yield f'<path class="axis" d="M{_LEFT},{_TOP}V{bottom}H{right}"/>'
    yield text((_LEFT + right) / 2, bottom + 44, x.label, 'text-anchor="middle"')
    middle = (_TOP + bottom) / 2
    yield text(20, middle, y.label, f'text-anchor="middle" transform="rotate(-90 20 {middle})"')


def _draw_series(x: Axis, y: Axis, series: Series, colour: str, number: int) -> Iterator[str]:
    places = [(_x(x, one), _y(y, other)) for one, other in series.points]
    if series.joined:
        joined = " ".join(f"{left},{top}" for left, top in places)
        yield f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>'
    else:
        for left, top in places:
            yield f'<circle cx="{left}" cy="{top}" r="3.5" fill="{colour}" fill-opacity="0.6"/>'
    left, top = _WIDTH - _RIGHT + 16, _TOP + 10 + 22 * number
    yield f'<rect x="{left}" y="{top - 9}" width="14" height="10" fill="{colour}"/>'
    yield text(left + 20, top, series.name, "")


def _x(axis: Axis, value: float) -> float:
    return round(_LEFT + axis.share(value) * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(axis: Axis, value: float) -> float:
    bottom = _HEIGHT - _BOTTOM
    return round(bottom - axis.share(value) * (bottom - _TOP), 1)
