"""Shows predictions in a notebook: the image as it was sent, and over it SVG."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator
from functools import partial
from html import escape

import numpy as np
from numpy.typing import NDArray

from fovea_client._masks import Mask
from fovea_client.answers import Detection, ImageError, ImageResult, Prediction
from fovea_client.images import Channels, ImageSource, PillowImage, Source, Url, image_to_send
from fovea_client.png import write_rgb

# Pixels of the longer side of an array in a notebook.
_SHOWN = 1000
LEAST_SCORE = 0.5  # of a keypoint that is drawn


def source_of(image: ImageSource, channels: Channels) -> Source:
    """Return a function that finds the image again to show it, or None if it is gone.

    It holds encoded bytes, and of pixels a copy of the size in which they are shown.
    """
    if isinstance(image, bytes | str | os.PathLike):
        return partial(image_to_send, image)
    if isinstance(image, PillowImage):
        image, channels = np.asarray(image.convert("RGB")), "RGB"
    if isinstance(image, np.ndarray) and image.ndim == 3:
        step = -(-max(image.shape) // _SHOWN)
        small = image[::step, ::step].copy()
        return lambda: write_rgb(small if channels == "RGB" else small[:, :, ::-1])
    return lambda: None


def as_html(prediction: Prediction) -> str:
    """Write a prediction as HTML that loads nothing, but images that were sent by their address."""
    gone = (lambda: None,) * len(prediction.images)
    sources = getattr(prediction, "sources", gone)
    return "".join(
        f"<pre>{escape(result.message)}</pre>"
        if isinstance(result, ImageError)
        else _image(result, source)
        for result, source in zip(prediction.images, sources, strict=True)
    )


def _image(result: ImageResult, source: Source) -> str:
    width, height = result.width, result.height
    try:
        sent = source()
    except OSError:  # the file is not there any more
        sent = None
    address = sent.address if isinstance(sent, Url) else None
    if isinstance(sent, bytes):  # browsers recognise the format themselves, and turn it upright
        address = f"data:image/jpeg;base64,{base64.b64encode(sent).decode()}"
    fill = "position:absolute;inset:0;width:100%;height:100%"
    image = f'<img src="{escape(address)}" alt="" style="{fill}">' if address else ""
    size = max(width, height) / 40
    shapes = "".join(_shapes(found, size) for found in reversed(result.detections))
    lines = "".join(f"<div>{escape(line)}</div>" for line in _lines(result))
    return (
        f'<div style="position:relative;width:{width}px;max-width:100%;'
        f'aspect-ratio:{width}/{height};background:#8888">{image}'
        f'<svg viewBox="0 0 {width} {height}" style="{fill}" font-family="sans-serif" '
        f'font-size="{size:.1f}">{shapes}</svg></div>{lines}'
    )


def _shapes(found: Detection, size: float) -> str:
    # Neighbouring classes get distant colours: steps by the golden angle.
    colour = f"hsl({found.class_id * 137.5 % 360:.0f} 90% 60%)"
    box = found.box
    corners = [(c.x, c.y) for c in found.corners] or [
        (box.x1, box.y1), (box.x2, box.y1), (box.x2, box.y2), (box.x1, box.y2)
    ]  # fmt: skip
    dots = "".join(
        f'<circle cx="{p.x:.1f}" cy="{p.y:.1f}" r="{size / 4:.1f}" fill="{colour}"/>'
        for p in found.keypoints
        if p.score >= LEAST_SCORE
    )
    return (
        f'{_mask(found.mask, colour)}{dots}<polygon points="{_points(corners)}" fill="none" '
        f'stroke="{colour}" stroke-width="{size / 8:.1f}"/>'
        f'<text x="{corners[0][0]:.1f}" y="{max(corners[0][1] - size / 4, size):.1f}" '
        f'fill="#fff" stroke="#000" stroke-width="{size / 5:.1f}" paint-order="stroke">'
        f"{escape(found.class_name)} {found.score:.2f}</text>"
    )


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _mask(mask: Mask | None, colour: str) -> str:
    if mask is None:
        return ""
    paint = f'fill="{colour}" fill-opacity="0.45"'
    if isinstance(mask, tuple):
        outlines = (zip(outline[::2], outline[1::2], strict=True) for outline in mask)
        return "".join(f'<polygon points="{_points(each)}" {paint}/>' for each in outlines)
    return f'<path d="{"".join(_columns(mask.pixels))}" {paint}/>'


def _columns(pixels: NDArray[np.bool_]) -> Iterator[str]:
    """Yield a rectangle of SVG's paths for each run down a column."""
    edges = np.diff(np.pad(pixels.T.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    begins, ends = np.argwhere(edges == 1).tolist(), np.argwhere(edges == -1).tolist()
    for (x, begin), (_, end) in zip(begins, ends, strict=True):
        yield f"M{x} {begin}h1V{end}h-1z"


def _lines(result: ImageResult) -> Iterator[str]:
    for each in result.classes:
        yield f"{each.class_name} {each.score:.2f}"
    for area in result.semantic.classes if result.semantic else ():
        yield f"{area.class_name} {area.share:.0%}"
    for tensor in result.tensors:
        yield f"{tensor.name} {tensor.data.dtype} {list(tensor.data.shape)}"
