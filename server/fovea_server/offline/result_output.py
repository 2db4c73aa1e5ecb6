"""Shows the results of an image, as a table or a line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from fovea_client import Detection, ImageResult, MaskFile, RunLengths

# Keypoints of a lower score are mostly hidden; a drawing leaves them out, too.
_SEEN = 0.5


def result_table(image: ImageResult) -> Table | Text:
    """Return a table of what was found, or a line where a table would have one row."""
    if image.tensors:
        shapes = (f"{t.name} {t.data.dtype} {list(t.data.shape)}" for t in image.tensors)
        return Text("\n".join(shapes))
    if image.values:
        return Text("\n".join(image.lines))
    if image.semantic is not None:
        areas = image.semantic.classes
        rows = ((one.class_name, str(one.pixels), f"{one.share:.1%}") for one in areas)
        return _table(("class", "pixels", "share"), rows)
    if image.classes:
        scored = ((one.class_name, f"{one.score:.3f}") for one in image.classes)
        return _table(("class", "score"), scored)
    if not image.detections:
        return Text("nothing found")
    first = image.detections[0]
    place = ("x1", "y1", "x2", "y2") if first.rotated is None else ("cx", "cy", "w", "h", "angle")
    drawn = isinstance(first.mask, RunLengths | MaskFile)
    said = any(one.notes for one in image.detections)
    more = ("mask",) * drawn + ("keypoints",) * bool(first.keypoints) + ("stages say",) * said
    objects = (
        (
            *(one.class_name, f"{one.score:.2f}", *_place(one), *_more(one)),
            *(", ".join(one.notes),) * said,
        )
        for one in image.detections
    )
    return _table(("class", "score", *place, *more), objects)


def _table(header: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(*header)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, *cells in rows:
        table.add_row(Text(name), *cells)
    return table


def _place(found: Detection) -> list[str]:
    if found.rotated is None:
        return [f"{corner:.0f}" for corner in asdict(found.box).values()]
    *place, angle = asdict(found.rotated).values()
    return [*(f"{number:.0f}" for number in place), f"{round(math.degrees(angle))}°"]


def _more(found: Detection) -> Iterator[str]:
    if isinstance(found.mask, RunLengths | MaskFile):
        yield f"{found.mask.pixels.sum()} px"
    if found.keypoints:
        seen = sum(point.score >= _SEEN for point in found.keypoints)
        yield f"{seen} of {len(found.keypoints)}"


def result_line(image: ImageResult) -> str:
    """Return what was found in one line, such as "3 person, 1 bus"."""
    if image.detections:
        counts = Counter(one.class_name for one in image.detections)
        return ", ".join(f"{count} {name}" for name, count in counts.most_common())
    if image.classes:
        return ", ".join(f"{one.class_name} {one.score:.3f}" for one in image.classes)
    if image.semantic is not None:
        return ", ".join(f"{one.class_name} {one.share:.1%}" for one in image.semantic.classes)
    text = result_table(image)
    return text.plain.replace("\n", ", ") if isinstance(text, Text) else ""
