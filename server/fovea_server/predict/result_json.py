"""Writes the results of an image as JSON, as the server answers them."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Any

from fovea_client import ImageError, ImageResult
from fovea_server.predict.entry import Entry


def entry_json(entry: Entry) -> dict[str, Any]:
    """Return the JSON of an image with its file, and its number in a video."""
    frame = {} if entry.frame is None else {"frame": entry.frame}
    return {"file": entry.source.file} | frame | result_json(entry.found)


def result_json(found: ImageResult | ImageError) -> dict[str, Any]:
    """Return the JSON of an image."""
    if isinstance(found, ImageError):
        return {"error": asdict(found)}
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
        return size | {"classes": [asdict(each) for each in found.classes]}
    for name in ("semantic", "saliency", "depth"):
        if (one := getattr(found, name)) is not None:
            return size | {name: _plain(asdict(one))}
    return size | {"detections": [_plain(asdict(each)) for each in found.detections]}


def _plain(value: object) -> object:
    """Return a value without the parts that it does not have, and files in base64."""
    match value:
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case dict():
            # No unit and no class are answers, too.
            said = ("unit", "classes")
            given = {k: v for k, v in value.items() if k in said or v not in (None, ())}
            return {k: _plain(v) for k, v in given.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return value
