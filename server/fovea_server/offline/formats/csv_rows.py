"""Writes a table: rows for each object, each class, or another result of an image."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

from fovea_engines.results.attributes import Attributes
from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.findings import Finding
from fovea_engines.results.options import PredictOptions
from fovea_server.offline.entry import Entry, Result
from fovea_server.offline.formats.names import OF_PIPELINE, of_pipeline
from fovea_server.offline.predictors import Predicting
from fovea_server.offline.sources import Source

FILE = "predictions.csv"

COLUMNS: Mapping[str, Sequence[str]] = {
    "classify": ("class_id", "class_name", "score"),
    "embed": ("norm", "vector"),
    "read": ("text", "score"),
    "image": ("width", "height"),
    "attributes": ("attribute", "class_id", "class_name", "score"),
}
"""Columns of each task of whole images that fits into a table."""

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
            if (result := entry.checked) is not None:
                frame = {} if entry.frame is None else {"frame": entry.frame}
                place = {"file": entry.source.file} | frame
                rows = (place | row for row in _rows(result))
                table.writerows({name: _text(cell) for name, cell in row.items()} for row in rows)


def _columns(model: Predicting) -> list[str]:
    if columns := COLUMNS.get(model.task):
        return [*columns]
    scored, box = ["class_id", "class_name", "score"], ["x1", "y1", "x2", "y2"]
    found = [*OF_PIPELINE] if model.is_pipeline else []
    if model.task in ("obb", "text"):
        return [*scored, *box, "cx", "cy", "w", "h", "angle", *found]
    names = () if model.words.skeleton is None else model.words.skeleton.names
    points = [f"{name} {value}" for name in names for value in ("x", "y", "score")]
    return [*scored, *box, *points, *found]


def _rows(result: Result) -> Iterator[dict[str, Any]]:
    """Yield the rows of the answer for an image."""
    found = result.found
    assert found is not None, "raw tensors have no table"
    answer = found.to_json(result.words, PredictOptions())[found.field]
    match found:
        case Detections():
            findings = found.findings or repeat(())
            for each, said in zip(answer, findings, strict=False):
                scored = {name: each[name] for name in ("class_id", "class_name", "score")}
                more = _points(each) | _of_pipeline(said)
                yield scored | each["box"] | each.get("rotated", {}) | more
        case Attributes():
            for one in answer:
                yield from ({"attribute": one["name"]} | each for each in one["classes"])
        case Embedding():
            # The shortest text that reads as the same float32.
            numbers = [float(str(number)) for number in found.vector]
            yield {"norm": answer["norm"], "vector": json.dumps(numbers)}
        case Classes():
            yield from answer
        case _:
            yield {name: answer[name] for name in COLUMNS[found.tasks[0]]}


def _points(found: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{point['name']} {value}": point[value]
        for point in found.get("keypoints", ())
        for value in ("x", "y", "score")
    }


def _of_pipeline(findings: Iterable[Finding]) -> dict[str, object]:
    row = of_pipeline(findings)
    if likely := row.get("attributes"):
        row["attributes"] = "; ".join(f"{name}: {', '.join(each)}" for name, each in likely.items())
    if classes := row.get("classes"):
        row["classes"] = ", ".join(f"{name} {score:.5f}" for name, score in classes.items())
    if vector := row.get("embedding"):
        row["embedding"] = json.dumps(vector)
    return {name: value for name, value in row.items() if value != ""}


def _text(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
