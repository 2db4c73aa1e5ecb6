"""Lists the formats of results, and the tasks that each can have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from fovea_engines.results.detections import Detections
from fovea_engines.results.options import MAPS
from fovea_engines.results.tasks import RESULT_OF
from fovea_preprocess.errors import InvalidOption
from fovea_server.offline.entry import Entry
from fovea_server.offline.formats.coco import write_coco
from fovea_server.offline.formats.csv_rows import write_csv
from fovea_server.offline.formats.yolo import write_yolo
from fovea_server.offline.predictors import Predicting
from fovea_server.offline.sources import Source

ANNOTATED = "annotated"

Write: TypeAlias = Callable[[Iterable[Entry], Sequence[Source], Predicting, Path], None]

WRITERS: Mapping[str, Write] = {"coco": write_coco, "yolo": write_yolo, "csv": write_csv}
"""Formats that are written of all results, at the end."""

FILES: Mapping[str, str] = {
    ANNOTATED: "annotated/",
    "coco": "predictions.json",
    "yolo": "labels/, classes.txt, data.yaml",
    "csv": "predictions.csv",
    "jsonl": "predictions.jsonl",
}
"""Where each format is found in the folder of the results."""

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
    """Read names, each with commas or not; InvalidOption if one is no format."""
    names = [name.strip() for text in given for name in text.split(",")]
    for name in names:
        if name not in _TASKS:
            raise InvalidOption(f"--format {name!r} is none of {', '.join(_TASKS)}")
    return tuple(name for name in _TASKS if name in names)


def check_formats(formats: Sequence[str], model: Predicting) -> None:
    """Refuse, as InvalidOption, formats that the results of a model cannot have."""
    able = [name for name, tasks in _TASKS.items() if model.task in tasks]
    mapless = model.mask == "none" and model.task in MAPS
    if mapless:
        able.remove(ANNOTATED)
    for name in formats:
        if name not in able:
            why = f"model '{model.name}', whose task is {model.task}"
            if name == ANNOTATED and mapless:
                why += ", and with --mask none"
            raise InvalidOption(f"--format {name} is not for {why}: it can have {', '.join(able)}")
