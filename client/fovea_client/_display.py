"""Shows results in a notebook: a reduced image with the results drawn over it."""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from html import escape
from typing import Any

import numpy as np

from fovea_client._labels import lines_of
from fovea_client._overlay import overlay
from fovea_client.answers import ImageError, ImageResult, Prediction
from fovea_client.images import Channels, ImageSource, PillowImage, Source, Url, image_to_send
from fovea_client.png import write_rgb

# Length of a displayed image's longer side in pixels: the smallest length, the largest length, and
# the length in a list of images.
_MIN, _MAX, _IN_A_LIST = 240, 1000, 420
# Largest number of images that a list shows. More images would make the notebook file large.
_LISTED = 24
_JPEG_QUALITY = 85


def source_of(image: ImageSource, channels: Channels) -> Source:
    """Return a function that reads the image again to show it.

    The function returns None if the image cannot be read again, for example an open file.

    The function keeps encoded bytes unchanged in memory. Of an array or a Pillow image it keeps a
    copy, reduced to at most 1000 pixels on the longer side.
    """
    if isinstance(image, bytes | str | os.PathLike):
        return partial(image_to_send, image)
    if isinstance(image, PillowImage):
        image, channels = np.asarray(image.convert("RGB")), "RGB"
    if isinstance(image, np.ndarray) and image.ndim == 3:
        step = -(-max(image.shape) // _MAX)
        small = image[::step, ::step].copy()
        return lambda: write_rgb(small if channels == "RGB" else small[:, :, ::-1])
    return lambda: None


def as_html(result: Prediction | ImageResult | ImageError, most: int = _MAX) -> str:
    """Return results as HTML that contains the images. Images that were sent as URLs are linked."""
    match result:
        case Prediction(images=(only,)):
            return as_html(only, most)
        case Prediction(images=images):
            return list_as_html(images) or ""
        case ImageError(message=message):
            return f"<pre>{escape(message)}</pre>"
    return _image(result, most)


def list_as_html(results: Sequence[Any]) -> str | None:
    """Return a list of results as HTML, side by side.

    Return None if the list contains an object that is not a result.
    """
    ours = Prediction | ImageResult | ImageError
    if not results or not all(isinstance(each, ours) for each in results):
        return None
    shown = "".join(f"<div>{as_html(each, _IN_A_LIST)}</div>" for each in results[:_LISTED])
    more = len(results) - _LISTED
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start">{shown}</div>'
        f"{f'<div>and {more} more</div>' if more > 0 else ''}"
    )


def show_lists() -> None:
    """Register the HTML of lists and tuples of results with IPython, if it is running."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell:
        html = shell.display_formatter.formatters["text/html"]
        for kind in (list, tuple):
            html.for_type(kind, _own_html)


def _own_html(results: Sequence[Any]) -> str | None:
    # A list type of another package may define its own HTML.
    own = getattr(results, "_repr_html_", None)
    html: str | None = own() if own else list_as_html(results)
    return html


def _image(result: ImageResult, most: int) -> str:
    width, height = result.width, result.height
    shown = min(max(width, height, _MIN), most)
    unit = max(width, height) / shown
    try:
        sent = getattr(result, "source", lambda: None)()
    except OSError:  # the file does not exist any more
        sent = None
    if result.picture is not None:
        sent = result.picture.png or sent
    address = sent.address if isinstance(sent, Url) else None
    if isinstance(sent, bytes):  # a browser detects the real format and applies the orientation
        data = base64.b64encode(_shrink(sent, shown)).decode()
        address = f"data:image/jpeg;base64,{data}"
    fill = "position:absolute;inset:0;width:100%;height:100%"
    image = f'<img src="{escape(address)}" alt="" style="{fill}">' if address else ""
    lines = "".join(f"<div>{escape(line)}</div>" for line in _lines(result, bool(address)))
    return (
        f'<div style="position:relative;width:{width / unit:.0f}px;max-width:100%;'
        f'aspect-ratio:{width}/{height};background:#8888">{image}'
        f'<svg viewBox="0 0 {width} {height}" style="{fill}" font-family="system-ui,sans-serif" '
        f'font-weight="600">{overlay(result, unit)}</svg></div>{lines}'
    )


def _shrink(sent: bytes, side: int) -> bytes:
    """Return a JPEG of the displayed size.

    Return the bytes unchanged if neither Pillow nor OpenCV can read them.
    """
    try:
        from PIL import Image, ImageOps

        with Image.open(io.BytesIO(sent)) as image:
            image.draft("RGB", (side, side))
            upright = ImageOps.exif_transpose(image).convert("RGB")
        upright.thumbnail((side, side))
        file = io.BytesIO()
        upright.save(file, "JPEG", quality=_JPEG_QUALITY)
        return file.getvalue()
    except (ImportError, OSError):  # OSError: Pillow cannot read the format
        pass
    try:
        import cv2
    except ImportError:
        return sent
    pixels = cv2.imdecode(np.frombuffer(sent, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        return sent
    scale = min(1.0, side / max(pixels.shape))
    small = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    _, encoded = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    return bytes(encoded)


def _lines(result: ImageResult, there: bool) -> Iterator[str]:
    if not there:
        yield "The image is no longer available: with many images, only paths are shown."
    yield from (line for line, _ in lines_of(result))
    for tensor in result.tensors:
        yield f"{tensor.name} {tensor.data.dtype} {list(tensor.data.shape)}"
