"""Writes a table: rows for each object, each class, or another result of an image."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fovea_client import Detection, ImageResult, ScoredClass, table_columns
from fovea_files.entry import Entry
from fovea_files.predictors import Predicting
from fovea_files.sources import Source

FILE = "predictions.csv"

# Of an object, what the stages of a pipeline found.
_OF_PIPELINE = ("attributes", "classes", "text", "text_score", "embedding", "error")
# A spreadsheet computes a cell that begins so.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(
    entries: Iterable[Entry], sources: Sequence[Source], model: Predicting, folder: Path
) -> None:
    """Write predictions.csv into a folder; masks are left out.

    Names that a spreadsheet would take for formulas begin with an apostrophe.
    """
    frames = ["frame"] * any(source.is_video for source in sources)
    header = ["file", *frames, *_columns(model)]
    with (folder / FILE).open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, header)
        table.writerow({name: _text(name) for name in header})
        for entry in entries:
            if isinstance(entry.found, ImageResult):
                frame = {} if entry.frame is None else {"frame": entry.frame}
                place = {"file": _text(entry.source.file)} | frame
                table.writerows(place | row for row in _rows(entry.found))


def _columns(model: Predicting) -> list[str]:
    if columns := table_columns(model.task):
        return [*columns]
    scored, box = ["class_id", "class_name", "score"], ["x1", "y1", "x2", "y2"]
    if model.task == "classify":
        return scored
    found = [*_OF_PIPELINE] if model.is_pipeline else []
    if model.task in ("obb", "text"):
        return [*scored, *box, "cx", "cy", "w", "h", "angle", *found]
    names = () if model.skeleton is None else model.skeleton.names
    points = [f"{name} {value}" for name in names for value in ("x", "y", "score")]
    return [*scored, *box, *points, *found]


def _rows(found: ImageResult) -> Iterator[dict[str, Any]]:
    for value in found.values:
        for row in value.rows():
            yield {
                name: _text(cell) if isinstance(cell, str) else cell for name, cell in row.items()
            }
    for one in found.classes:
        yield _class(one)
    for each in found.detections:
        yield _class(each) | asdict(each.box) | _more(each)


def _class(one: ScoredClass | Detection) -> dict[str, Any]:
    return {"class_id": one.class_id, "class_name": _text(one.class_name), "score": one.score}


def _text(name: str) -> str:
    return f"'{name}" if name.startswith(_FORMULA) else name


def _more(found: Detection) -> dict[str, object]:
    if found.rotated is not None:
        return asdict(found.rotated) | _of_pipeline(found)
    return _of_pipeline(found) | {
        f"{point.name} {value}": getattr(point, value)
        for point in found.keypoints
        for value in ("x", "y", "score")
    }


def _of_pipeline(found: Detection) -> dict[str, object]:
    row: dict[str, object] = {
        "attributes": "; ".join(
            f"{one.name}: {', '.join(each.class_name for each in one.likely)}"
            for one in found.attributes
        ),
        "classes": ", ".join(f"{one.class_name} {one.score:.5f}" for one in found.classes),
    }
    if found.text is not None:
        row |= {"text": found.text.text, "text_score": found.text.score}
    if found.embedding is not None:
        row |= {"embedding": json.dumps(found.embedding.vector.tolist())}
    if found.error is not None:
        row["error"] = found.error.message
    return {name: _text(v) if isinstance(v, str) else v for name, v in row.items() if v != ""}
