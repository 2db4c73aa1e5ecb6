"""Writes a table: a row for each object, or for each class of an image."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fovea_client import Detection, ImageResult
from fovea_server.predict.entry import Entry
from fovea_server.predict.predictors import Predicting
from fovea_server.predict.sources import Source

FILE = "predictions.csv"


def write_csv(
    entries: Iterable[Entry], sources: Sequence[Source], model: Predicting, folder: Path
) -> None:
    """Write predictions.csv into a folder; masks are left out."""
    frames = ["frame"] * any(source.is_video for source in sources)
    header = ["file", *frames, "class_id", "class_name", "score", *_columns(model)]
    with (folder / FILE).open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, header)
        table.writeheader()
        for entry in entries:
            if isinstance(entry.found, ImageResult):
                frame = {} if entry.frame is None else {"frame": entry.frame}
                place = {"file": entry.source.file} | frame
                table.writerows(place | row for row in _rows(entry.found))


def _columns(model: Predicting) -> list[str]:
    if model.task == "classify":
        return []
    box = ["x1", "y1", "x2", "y2"]
    if model.task == "obb":
        return [*box, "cx", "cy", "w", "h", "angle"]
    names = () if model.skeleton is None else model.skeleton.names
    return box + [f"{name} {value}" for name in names for value in ("x", "y", "score")]


def _rows(found: ImageResult) -> Iterator[dict[str, Any]]:
    yield from map(asdict, found.classes)
    for one in found.detections:
        row = {name: getattr(one, name) for name in ("class_id", "class_name", "score")}
        yield row | asdict(one.box) | _more(one)


def _more(found: Detection) -> dict[str, float]:
    if found.rotated is not None:
        return asdict(found.rotated)
    return {
        f"{point.name} {value}": getattr(point, value)
        for point in found.keypoints
        for value in ("x", "y", "score")
    }
