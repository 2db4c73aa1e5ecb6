"""Writes results as a COCO dataset: images, annotations with scores, categories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import orjson

from fovea_engines.results.detections import Detections
from fovea_engines.results.mask_encoding import polygons, run_lengths
from fovea_engines.results.options import MaskFormat, PredictOptions
from fovea_engines.results.skeleton import SEEN
from fovea_server.offline.entry import Entry, Result
from fovea_server.offline.formats.names import class_names, pipeline_columns
from fovea_server.offline.predictors import ModelInfo
from fovea_server.offline.sources import Source

FILE = "predictions.json"

# Number of decimals of pixel coordinates, as in responses of /v1.
_PIXEL = 2


def write_coco(
    entries: Iterable[Entry],
    sources: Sequence[Source],
    model: ModelInfo,
    folder: Path,
    info: Mapping[str, Any] | None = None,
) -> None:
    """Write predictions.json into a directory; the fields of `info` are added to its `info` object.

    Annotations are written one by one while results are read, because the masks of all results may
    not fit into memory.
    """
    image_ids = _image_ids(sources)
    images: list[dict[str, Any]] = []
    seen: set[int] = set()
    with (folder / FILE).open("w", encoding="utf-8") as file:
        about = {"description": f"{model.name} {model.version}", **(info or {})}
        file.write('{"info": ' + _text(about))
        file.write(',\n"annotations": [')
        numbers = count(1)  # pycocotools treats an annotation with id 0 as unmatched
        for entry, image_id in zip(entries, image_ids, strict=False):
            if (result := entry.checked) is None:
                continue
            width, height = result.size
            about = {"file_name": entry.name, "width": width, "height": height}
            images.append({"id": image_id} | about)
            for row in _annotations(image_id, result, model.mask):
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
    """Return the ids of images.

    If all file names are different numbers, these are the ids; otherwise, the ids are 1, 2, and so
    on.
    """
    stems = [source.path.stem for source in sources]
    if all(stem.isascii() and stem.isdecimal() for stem in stems):
        ids = dict.fromkeys(map(int, stems))
        if len(ids) == len(stems) and not any(source.is_video for source in sources):
            return iter(ids)
    return count(1)


def _annotations(image_id: int, result: Result, form: MaskFormat) -> Iterator[dict[str, Any]]:
    found, (width, height) = result.found, result.size
    assert isinstance(found, Detections), "the task was checked"
    objects = found.to_json(result.vocabulary, PredictOptions(mask="none"))[found.field]
    masks = repeat(None) if found.masks is None else found.masks.bitmaps()
    of_stages = found.stage_results or repeat(())
    for each, mask, results in zip(objects, masks, of_stages, strict=False):
        x1, y1, x2, y2 = each["box"].values()
        box = _pixels((x1, y1, x2 - x1, y2 - y1))
        area = round(box[2] * box[3], _PIXEL)
        drawn: dict[str, Any] = {}
        if mask is not None and form == "polygon":
            outlines = polygons(mask)
            drawn, area = {"segmentation": list(map(_pixels, outlines))}, _area(outlines)
        elif mask is not None:
            # COCO has no form for masks as PNG files, so they become run lengths.
            drawn = {"segmentation": run_lengths(mask, (height, width))}
            area = int(mask.pixels.sum())
        elif corners := each.get("corners"):
            # COCO has no form for rotated boxes, so their corners become an outline.
            outline = [value for corner in corners for value in corner.values()]
            drawn, area = {"segmentation": [outline]}, _area([outline])
        points = each.get("keypoints")
        yield {
            "image_id": image_id,
            "category_id": each["class_id"],
            "bbox": box,
            "score": each["score"],
            **({} if mask is None else drawn),
            **({"keypoints": _keypoints(points)} if points else {}),
            **pipeline_columns(results),
            "area": area,
            "iscrowd": 0,
            **(drawn if mask is None else {}),
            **({"num_keypoints": len(points)} if points else {}),
        }


def _pixels(places: Iterable[float]) -> list[float]:
    return [round(place, _PIXEL) for place in places]


def _area(outlines: Iterable[Sequence[float]]) -> float:
    points = (np.array(each, np.float32).reshape(-1, 1, 2) for each in outlines)
    return round(sum(cv2.contourArea(each) for each in points), 2)


def _keypoints(points: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return x, y and visibility of each keypoint, in COCO's form.

    The visibility is 2 for a visible keypoint, and 1 for a keypoint with a low score.
    """
    rows = ((p["x"], p["y"], 2 if p["score"] >= SEEN else 1) for p in points)
    return [value for row in rows for value in row]


def _categories(model: ModelInfo, seen: set[int]) -> list[dict[str, Any]]:
    points: dict[str, Any] = {}
    if model.vocabulary.skeleton is not None:
        bones = [[one + 1, other + 1] for one, other in model.vocabulary.skeleton.bones]
        points = {"keypoints": list(model.vocabulary.skeleton.names), "skeleton": bones}
    names = class_names(model.vocabulary.labels, seen)
    return [{"id": each, "name": name, **points} for each, name in enumerate(names)]
