"""Formats the result of an image as a table or a line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat

from rich.table import Table
from rich.text import Text

from fovea_engines.results.class_names import class_name
from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.maps import ClassMap
from fovea_engines.results.skeleton import SEEN
from fovea_engines.results.vocabulary import Vocabulary
from fovea_server.offline.entry import Result

_NOTHING = "nothing found"


def result_table(result: Result) -> Table | Text:
    """Return a table of the result, or a line of text if the table would have only one row."""
    vocabulary = result.vocabulary
    match result.found:
        case None:
            tensors = (f"{t['name']} {t['datatype']} {t['shape']}" for t in result.json["tensors"])
            return Text("\n".join(tensors))
        case ClassMap() as found:
            areas = (
                (class_name(vocabulary.labels, one.class_id), str(one.pixels), f"{one.share:.1%}")
                for one in found.areas
            )
            return _table(("class", "pixels", "share"), areas)
        case Classes() as found if len(found):
            return _table(("class", "score"), _list_scores(found, vocabulary, 3))
        case Detections() as found if len(found):
            return _objects(found, vocabulary)
        case Classes() | Detections():
            return Text(_NOTHING)
        case found:
            lines = (text for text, _ in found.lines(vocabulary.labels))
            return Text("\n".join(lines) or _NOTHING)


def _objects(found: Detections, vocabulary: Vocabulary) -> Table:
    place = ("x1", "y1", "x2", "y2") if found.rotated is None else ("cx", "cy", "w", "h", "angle")
    more = {
        "mask": found.masks is not None,
        "keypoints": found.keypoints is not None,
        "stage results": found.stage_results is not None,
    }
    header = ("class", "score", *place, *(name for name, there in more.items() if there))
    rows = zip(_list_scores(found, vocabulary, 2), _places(found), _more(found), strict=True)
    return _table(header, ((*name, *at, *rest) for name, at, rest in rows))


def _table(header: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(*header)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, *cells in rows:
        table.add_row(Text(name), *cells)
    return table


def _list_scores(
    found: Classes | Detections, vocabulary: Vocabulary, digits: int
) -> Iterator[tuple[str, str]]:
    for class_id, score in zip(found.class_ids.tolist(), found.scores.tolist(), strict=True):
        yield class_name(vocabulary.labels, class_id), f"{score:.{digits}f}"


def _places(found: Detections) -> Iterator[list[str]]:
    if found.rotated is None:
        for corners in found.boxes.tolist():
            yield [f"{corner:.0f}" for corner in corners]
        return
    for *place, angle in found.rotated.tolist():
        yield [*(f"{number:.0f}" for number in place), f"{round(math.degrees(angle))}°"]


def _more(found: Detections) -> Iterator[list[str]]:
    masks = repeat(None) if found.masks is None else found.masks.bitmaps()
    points = repeat(None) if found.keypoints is None else found.keypoints
    stage_results = repeat(None) if found.stage_results is None else found.stage_results
    for mask, of_object, object_results, _ in zip(
        masks, points, stage_results, found.scores, strict=False
    ):
        cells = []
        if mask is not None:
            cells.append(f"{mask.pixels.sum()} px")
        if of_object is not None:
            cells.append(f"{(of_object[:, 2] >= SEEN).sum()} of {len(of_object)}")
        if object_results is not None:
            cells.append(", ".join(each.caption for each in object_results if each.caption))
        yield cells


def result_line(result: Result) -> str:
    """Return the result in one line, such as "3 person, 1 bus"."""
    labels = result.vocabulary.labels
    match result.found:
        case Detections() as found if len(found):
            counts = Counter(class_name(labels, each) for each in found.class_ids.tolist())
            return ", ".join(f"{count} {name}" for name, count in counts.most_common())
        case Classes() as found:
            return ", ".join(map(" ".join, _list_scores(found, result.vocabulary, 3))) or _NOTHING
        case ClassMap() as found:
            named = ((class_name(labels, one.class_id), one.share) for one in found.areas)
            return ", ".join(f"{name} {share:.1%}" for name, share in named)
    text = result_table(result)
    return text.plain.replace("\n", ", ") if isinstance(text, Text) else ""
