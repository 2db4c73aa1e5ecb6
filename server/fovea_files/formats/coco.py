"""Writes the results as a COCO dataset: images, annotations with scores, categories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import orjson

from fovea_client import Detection, ImageResult, MaskFile, Outlines, RunLengths
from fovea_engines.detect.mask_encoding import run_lengths as encoded
from fovea_files.client_results import SEEN, bitmap
from fovea_files.entry import Entry
from fovea_files.formats.names import class_names
from fovea_files.predictors import Predicting
from fovea_files.sources import Source

FILE = "predictions.json"


def write_coco(
    entries: Iterable[Entry],
    sources: Sequence[Source],
    model: Predicting,
    folder: Path,
    info: Mapping[str, Any] | None = None,
) -> None:
    """Write predictions.json into a folder, with more `info` on top.

    Annotations are written as they are read, as the masks of all can be more than the memory.
    """
    image_ids = _image_ids(sources)
    images: list[dict[str, Any]] = []
    seen: set[int] = set()
    with (folder / FILE).open("w", encoding="utf-8") as file:
        about = {"description": f"{model.name} {model.version}", **(info or {})}
        file.write('{"info": ' + _text(about))
        file.write(',\n"annotations": [')
        numbers = count(1)  # pycocotools takes 0 for no annotation
        for entry, image_id in zip(entries, image_ids, strict=False):
            if not isinstance(entry.found, ImageResult):
                continue
            size = {"width": entry.found.width, "height": entry.found.height}
            images.append({"id": image_id, "file_name": entry.name, **size})
            for row in _annotations(entry.found, image_id):
                number = next(numbers)
                seen.add(row["category_id"])
                file.write(f"{',' if number > 1 else ''}\n{_text({'id': number} | row)}")
        rest = {"images": images, "categories": _categories(model, seen)}
        for name, rows in rest.items():
            file.write(f'\n],\n"{name}": [\n' + ",\n".join(map(_text, rows)))
        file.write("\n]}\n")


def _text(row: dict[str, Any]) -> str:
    return orjson.dumps(row).decode()


def _image_ids(sources: Sequence[Source]) -> Iterator[int]:
    """Number images from 1; images of COCO, whose names are numbers, by their names."""
    stems = [source.path.stem for source in sources]
    if all(stem.isascii() and stem.isdecimal() for stem in stems):
        ids = dict.fromkeys(map(int, stems))
        if len(ids) == len(stems) and not any(source.is_video for source in sources):
            return iter(ids)
    return count(1)


def _annotations(found: ImageResult, image_id: int) -> Iterator[dict[str, Any]]:
    size = found.height, found.width
    for row, one in zip(found.to_coco(image_id), found.detections, strict=True):
        *_, w, h = row["bbox"]
        row |= {"area": round(w * h, 2), "iscrowd": 0} | _shape(one, size)
        if one.keypoints:
            row |= {"keypoints": _keypoints(one), "num_keypoints": len(one.keypoints)}
        yield row


def _shape(found: Detection, size: tuple[int, int]) -> dict[str, Any]:
    """Return the area of the mask, and what `to_coco` lacks: mask files, and rotated boxes.

    The outline of a rotated box, which COCO does not know, is its corners.
    """
    match found.mask:
        case RunLengths() as run_lengths:
            return {"area": int(run_lengths.pixels.sum())}
        case MaskFile():
            part = bitmap(found, size)
            return {"segmentation": encoded(part, size), "area": int(part.pixels.sum())}
        case Outlines(polygons=polygons):
            return {"area": _area(polygons)}
    if found.corners:
        outline = [value for corner in found.corners for value in (corner.x, corner.y)]
        return {"segmentation": [outline], "area": _area([outline])}
    return {}


def _area(outlines: Iterable[Sequence[float]]) -> float:
    points = (np.array(each, np.float32).reshape(-1, 1, 2) for each in outlines)
    return round(sum(cv2.contourArea(each) for each in points), 2)


def _keypoints(found: Detection) -> list[float]:
    """Return x, y and COCO's visibility: 2 for a point that is seen, 1 for one that is guessed."""
    return [value for p in found.keypoints for value in (p.x, p.y, 2 if p.score >= SEEN else 1)]


def _categories(model: Predicting, seen: set[int]) -> list[dict[str, Any]]:
    points: dict[str, Any] = {}
    if model.skeleton is not None:
        bones = [[one + 1, other + 1] for one, other in model.skeleton.bones]
        points = {"keypoints": list(model.skeleton.names), "skeleton": bones}
    names = class_names(model.labels, seen)
    return [{"id": each, "name": name, **points} for each, name in enumerate(names)]
