"""Writes labels in YOLO's format: a text file for each image, with a line for each object."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.detections import Detections
from fovea_engines.results.mask_encoding import polygons
from fovea_engines.results.masks import Bitmap
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import SEEN
from fovea_server.offline.entry import Entry, Result
from fovea_server.offline.formats.names import class_names
from fovea_server.offline.predictors import ModelInfo
from fovea_server.offline.sources import Source

FOLDER = "labels"

Points = NDArray[np.float64]


def write_yolo(
    entries: Iterable[Entry], sources: Sequence[Source], model: ModelInfo, folder: Path
) -> None:
    """Write labels/, classes.txt and data.yaml into a directory.

    A line is ``class cx cy w h`` for a box, ``class x y x y ...`` for the outline of a mask or the
    corners of a rotated box, and ``class cx cy w h x y visibility ...`` for keypoints. Coordinates
    are fractions of the upright image's width and height. An image without objects has an empty
    file.
    """
    seen: set[int] = set()
    for entry in entries:
        if (result := entry.checked) is None:
            continue
        assert isinstance(result.found, Detections), "the task was checked"
        seen.update(result.found.class_ids.tolist())
        file = folder / FOLDER / f"{entry.stem}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(_lines(result, result.found, model.task)))
    names = class_names(model.vocabulary.labels, seen)
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in names), "utf-8")
    (folder / "data.yaml").write_text(_yaml(names, model), "utf-8")


def _yaml(names: Sequence[str], model: ModelInfo) -> str:
    """Return the text of data.yaml; strings are written as JSON, because JSON is valid YAML."""
    lines = [
        f"# Labels predicted by {model.name} {model.version}. Put the images into images/, next "
        "to labels/.",
        "train: images",
        "val: images",
        "names:",
        *(f"  {each}: {json.dumps(name)}" for each, name in enumerate(names)),
    ]
    if model.vocabulary.skeleton is not None:
        lines.append(f"kpt_shape: [{len(model.vocabulary.skeleton.names)}, 3]")
    return "\n".join(lines) + "\n"


def _lines(result: Result, found: Detections, task: str) -> Iterator[str]:
    size = np.array(result.size, np.float64)
    masks = repeat(None) if found.masks is None else found.masks.bitmaps()
    objects = found.to_json(result.vocabulary, PredictOptions(mask="none"))[found.field]
    for one, mask in zip(objects, masks, strict=False):
        if outline := one.get("corners"):
            values = _shares(np.array([(p["x"], p["y"]) for p in outline]), size)
        elif task == "segment" and mask is not None:
            values = _shares(_outline(mask, _corners(one)), size)
        else:
            (x1, y1), (x2, y2) = _shares(_corners(one)[[0, 2]], size)
            box = np.array([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1])
            values = np.concatenate([box, _keypoints(one, size).ravel()])
        yield f"{one['class_id']} {' '.join(f'{value:.6g}' for value in values.ravel())}\n"


def _corners(found: Mapping[str, Any]) -> Points:
    x1, y1, x2, y2 = found["box"].values()
    return np.array([(x1, y1), (x2, y1), (x2, y2), (x1, y2)])


def _shares(points: Points, size: Points) -> Points:
    """Convert points [n, 2] from pixels to fractions of the image's size, and clip them to 0..1.

    Training programs reject points outside the image.
    """
    return np.clip(points / size, 0, 1)


def _keypoints(found: Mapping[str, Any], size: Points) -> Points:
    """Return x, y and COCO's visibility of each keypoint.

    The visibility is 2 for a visible keypoint, 1 for a low score, and 0 outside the image.
    """
    points = found.get("keypoints", ())
    rows = np.array([(p["x"], p["y"], 2 if p["score"] >= SEEN else 1) for p in points])
    rows = rows.reshape(-1, 3)
    rows[:, :2] /= size
    rows[((rows[:, :2] < 0) | (rows[:, :2] > 1)).any(axis=1)] = 0
    return rows


def _outline(mask: Bitmap, box: Points) -> Points:
    """Return one outline [n, 2] around all parts of a mask, in pixels.

    If the mask has no set pixel, return the corners of the box.
    """
    outlines = sorted((np.array(each).reshape(-1, 2) for each in polygons(mask)), key=len)
    if not outlines:
        return box
    whole = outlines.pop()
    while outlines:
        whole = _join_outlines(whole, outlines.pop())
    return whole


def _join_outlines(whole: Points, part: Points) -> Points:
    """Join two outlines at their nearest points, so that the path goes around both of them."""
    distances = np.square(whole[:, None] - part[None]).sum(axis=-1)
    here, there = np.unravel_index(distances.argmin(), distances.shape)
    around = np.roll(part, -int(there), axis=0)
    return np.concatenate([whole[: here + 1], around, around[:1], whole[here:]])
