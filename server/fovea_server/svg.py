"""Writes the outer elements and the texts of an SVG drawing."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_STYLE = "text{font:13px system-ui,sans-serif;fill:#333}.title{font-size:16px;font-weight:600}"


def document(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """Return an SVG document with a white background.

    Args:
        title: description of the drawing, for screen readers.
        width: width in pixels.
        height: height in pixels.
        parts: SVG elements, in the order in which they are drawn.
    """
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(left: float, top: float, words: str, attributes: str = "") -> str:
    """Return an SVG text element. `top` is the y coordinate of the text's baseline in pixels."""
    return f'<text x="{left:g}" y="{top:g}" {attributes}>{escape(words)}</text>'
