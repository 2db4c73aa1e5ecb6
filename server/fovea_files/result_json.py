"""Writes the results of an image as JSON, as the server answers them."""

from __future__ import annotations

import base64
from typing import Any

from fovea_client import ImageError, ImageResult
from fovea_files.entry import Entry


def entry_json(entry: Entry) -> dict[str, Any]:
    """Return the JSON of an image with its file, and its number in a video."""
    frame = {} if entry.frame is None else {"frame": entry.frame}
    return {"file": entry.source.file} | frame | result_json(entry.found)


def result_json(found: ImageResult | ImageError) -> dict[str, Any]:
    """Return the JSON of an image."""
    if isinstance(found, ImageError):
        return {"error": _plain(found)}
    size = {"width": found.width, "height": found.height, "orientation": found.orientation}
    if found.tensors:
        tensors = [
            {
                "name": tensor.name,
                "datatype": tensor.data.dtype.name,
                "shape": list(tensor.data.shape),
                "data": tensor.data.ravel().tolist(),
            }
            for tensor in found.tensors
        ]
        return size | {"tensors": tensors}
    if found.classes:
        return size | {"classes": [_plain(each) for each in found.classes]}
    for name in ("semantic", "saliency", "depth"):
        if (one := getattr(found, name)) is not None:
            return size | {name: _plain(one)}
    return size | {"detections": [_plain(each) for each in found.detections]}


def _plain(value: object) -> object:
    """Return a value without the parts that it does not have, and files in base64."""
    match value:
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case list() | tuple():
            return [_plain(each) for each in value]
    # `asdict` would copy each value deeply, on the way of every image.
    names: tuple[str, ...] | None = getattr(type(value), "__match_args__", None)
    if names is None:
        return value
    parts = {name: getattr(value, name) for name in names}
    # No unit and no class are answers, too.
    said = ("unit", "classes")
    return {k: _plain(v) for k, v in parts.items() if k in said or v not in (None, ())}
