"""Writes a table: rows for each object, each class, or another result of an image."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fovea_engines.results.attributes import Attributes
from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.new_image import NewImage
from fovea_engines.results.reading import ReadText
from fovea_engines.results.vocabulary import WORDLESS
from fovea_server.offline.entry import Entry, Result
from fovea_server.offline.formats.names import likely_names
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
            if isinstance(entry.result, Result):
                frame = {} if entry.frame is None else {"frame": entry.frame}
                place = {"file": entry.source.file} | frame
                rows = (place | row for row in _rows(entry.result.json))
                table.writerows({name: _text(cell) for name, cell in row.items()} for row in rows)


def _columns(model: Predicting) -> list[str]:
    if columns := COLUMNS.get(model.task):
        return [*columns]
    scored, box = ["class_id", "class_name", "score"], ["x1", "y1", "x2", "y2"]
    found = [*_OF_PIPELINE] if model.is_pipeline else []
    if model.task in ("obb", "text"):
        return [*scored, *box, "cx", "cy", "w", "h", "angle", *found]
    names = () if model.words.skeleton is None else model.words.skeleton.names
    points = [f"{name} {value}" for name in names for value in ("x", "y", "score")]
    return [*scored, *box, *points, *found]


def _rows(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the answer for an image."""
    for one in answer.get(Attributes.field, ()):
        yield from ({"attribute": one["name"]} | each for each in one["classes"])
    if Embedding.field in answer:
        found = Embedding.from_json(answer, WORDLESS)
        # The shortest text that reads as the same float32.
        numbers = [float(str(number)) for number in found.vector]
        yield {"norm": answer[Embedding.field]["norm"], "vector": json.dumps(numbers)}
    for kind in (ReadText, NewImage):
        if (value := answer.get(kind.field)) is not None:
            yield {name: value[name] for name in COLUMNS[kind.tasks[0]]}
    yield from answer.get(Classes.field, ())
    for each in answer.get(Detections.field, ()):
        scored = {name: each[name] for name in ("class_id", "class_name", "score")}
        yield scored | each["box"] | each.get("rotated", {}) | _points(each) | _of_pipeline(each)


def _points(found: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{point['name']} {value}": point[value]
        for point in found.get("keypoints", ())
        for value in ("x", "y", "score")
    }


def _of_pipeline(found: Mapping[str, Any]) -> dict[str, object]:
    likely = likely_names(found.get("attributes", ()))
    classes = (f"{one['class_name']} {one['score']:.5f}" for one in found.get("classes", ()))
    row: dict[str, object] = {
        "attributes": "; ".join(f"{name}: {', '.join(each)}" for name, each in likely),
        "classes": ", ".join(classes),
    }
    if text := found.get("text"):
        row |= {"text": text["text"], "text_score": text["score"]}
    if "embedding" in found:
        vector = Embedding.from_json(found, WORDLESS).vector
        row["embedding"] = json.dumps(vector.tolist())
    if error := found.get("error"):
        row["error"] = error["message"]
    return {name: value for name, value in row.items() if value != ""}


def _text(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
