"""The formats of results, and the tasks that each format supports."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, TypeAlias

from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import MAPS, PredictOptions
from fovea_engines.results.registry import RESULT_OF
from fovea_engines.results.stage_results import StageResult
from fovea_preprocess.errors import InvalidOption
from fovea_server.offline.entry import Entry, Result
from fovea_server.offline.formats.coco import write_coco
from fovea_server.offline.formats.names import OF_PIPELINE, pipeline_columns
from fovea_server.offline.formats.yolo import write_yolo
from fovea_server.offline.predictors import ModelInfo
from fovea_server.offline.sources import Source

FILE = "predictions.csv"

# Characters that begin a formula. A spreadsheet would evaluate a cell that begins with one of them.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(
    entries: Iterable[Entry], sources: Sequence[Source], model: ModelInfo, folder: Path
) -> None:
    """Write predictions.csv into a directory; masks are left out.

    An apostrophe is put before text that a spreadsheet would evaluate as a formula.
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


def _columns(model: ModelInfo) -> list[str]:
    if columns := RESULT_OF[model.task].columns:
        return [*columns]
    scored, box = [*Classes.columns], ["x1", "y1", "x2", "y2"]
    found = [*OF_PIPELINE] if model.is_pipeline else []
    if model.task in ("obb", "text"):
        return [*scored, *box, "cx", "cy", "w", "h", "angle", *found]
    names = () if model.vocabulary.skeleton is None else model.vocabulary.skeleton.names
    points = [f"{name} {value}" for name in names for value in ("x", "y", "score")]
    return [*scored, *box, *points, *found]


def _rows(result: Result) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table for one image."""
    found = result.found
    assert found is not None, "raw tensors have no table"
    if not isinstance(found, Detections):
        yield from found.rows(result.vocabulary)
        return
    objects = found.to_json(result.vocabulary, PredictOptions(mask="none"))[found.field]
    for each, results in zip(objects, found.stage_results or repeat(()), strict=False):
        scored = {name: each[name] for name in Classes.columns}
        more = _points(each) | _format_stage_results(results)
        yield scored | each["box"] | each.get("rotated", {}) | more


def _points(found: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{point['name']} {value}": point[value]
        for point in found.get("keypoints", ())
        for value in ("x", "y", "score")
    }


def _format_stage_results(results: Iterable[StageResult]) -> dict[str, object]:
    row = pipeline_columns(results)
    if likely := row.get("attributes"):
        row["attributes"] = "; ".join(f"{name}: {', '.join(each)}" for name, each in likely.items())
    if classes := row.get("classes"):
        row["classes"] = ", ".join(f"{name} {score:.5f}" for name, score in classes.items())
    return {name: value for name, value in row.items() if value != ""}


def _text(cell: object) -> object:
    if isinstance(cell, list):
        return json.dumps(cell)
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


ANNOTATED = "annotated"

Write: TypeAlias = Callable[[Iterable[Entry], Sequence[Source], ModelInfo, Path], None]

WRITERS: Mapping[str, Write] = {"coco": write_coco, "yolo": write_yolo, "csv": write_csv}
"""Functions that write a format from all results, at the end of a run."""

FILES: Mapping[str, str] = {
    ANNOTATED: "annotated/",
    "coco": "predictions.json",
    "yolo": "labels/, classes.txt, data.yaml",
    "csv": "predictions.csv",
    "jsonl": "predictions.jsonl",
}
"""Files that each format writes into the directory of results."""

_OBJECTS = Detections.tasks
FINDS_NO_OBJECTS = tuple(task for task in RESULT_OF if task not in _OBJECTS)

_TASKS: Mapping[str, Sequence[str]] = {
    ANNOTATED: (*_OBJECTS, *FINDS_NO_OBJECTS),
    "coco": _OBJECTS,
    "yolo": _OBJECTS,
    "csv": (*_OBJECTS, *(task for task in FINDS_NO_OBJECTS if RESULT_OF[task].columns)),
    "jsonl": (*_OBJECTS, *FINDS_NO_OBJECTS, "tensors"),
}


def read_formats(given: Sequence[str]) -> tuple[str, ...]:
    """Parse format names, which may be separated by commas or given one by one.

    Raises:
        InvalidOption: a format is unknown.
    """
    names = [name.strip() for text in given for name in text.split(",")]
    for name in names:
        if name not in _TASKS:
            raise InvalidOption(f"--format {name!r} is unknown: use one of {', '.join(_TASKS)}")
    return tuple(name for name in _TASKS if name in names)


def check_formats(formats: Sequence[str], model: ModelInfo) -> None:
    """Raise InvalidOption if a format does not support the results of the model."""
    able = [name for name, tasks in _TASKS.items() if model.task in tasks]
    mapless = model.mask == "none" and model.task in MAPS
    if mapless:
        able.remove(ANNOTATED)
    for name in formats:
        if name not in able:
            why = f"model '{model.name}', whose task is {model.task}"
            if name == ANNOTATED and mapless:
                why += ", and with --mask none"
            raise InvalidOption(
                f"--format {name} does not support {why}: use one of {', '.join(able)}"
            )
