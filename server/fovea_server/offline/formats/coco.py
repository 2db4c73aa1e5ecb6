"""Writes the results as a COCO dataset: images, annotations with scores, categories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import orjson

from fovea_engines.results.embedding import Embedding
from fovea_engines.results.mask_encoding import read_bitmap, run_lengths
from fovea_engines.results.vocabulary import WORDLESS
from fovea_server.offline.entry import Entry, Result
from fovea_server.offline.formats.names import SEEN, class_names, likely_names
from fovea_server.offline.predictors import Predicting
from fovea_server.offline.sources import Source

FILE = "predictions.json"

# Decimals, as /v1 has them.
_PIXEL = 2


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
            if not isinstance(found := entry.result, Result):
                continue
            size = {"width": found.width, "height": found.height}
            images.append({"id": image_id, "file_name": entry.name, **size})
            for row in map(partial(_annotation, image_id), found.objects):
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


def _annotation(image_id: int, found: Mapping[str, Any]) -> dict[str, Any]:
    x1, y1, x2, y2 = found["box"].values()
    box = _pixels((x1, y1, x2 - x1, y2 - y1))
    points = found.get("keypoints")
    row = {
        "image_id": image_id,
        "category_id": found["class_id"],
        "bbox": box,
        "score": found["score"],
        **_segmentation(found.get("mask")),
        **({"keypoints": _keypoints(points)} if points else {}),
        **_of_pipeline(found),
    }
    row |= {"area": round(box[2] * box[3], _PIXEL), "iscrowd": 0} | _shape(found)
    return row | ({"num_keypoints": len(points)} if points else {})


def _segmentation(mask: Mapping[str, Any] | None) -> dict[str, Any]:
    match mask:
        case {"counts": _}:
            return {"segmentation": mask}
        case {"polygons": outlines}:
            return {"segmentation": [_pixels(each) for each in outlines]}
    return {}


def _shape(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the area of the mask, and the outline of what COCO has no form for.

    That is a PNG file, and a rotated box, whose outline is its corners.
    """
    if (mask := found.get("mask")) is None:
        outline = [value for corner in found.get("corners", ()) for value in corner.values()]
        return {"segmentation": [outline], "area": _area([outline])} if outline else {}
    if "polygons" in mask:
        return {"area": _area(mask["polygons"])}
    part = read_bitmap(mask)
    area = {"area": int(part.pixels.sum())}
    if "counts" in mask:
        return area
    height, width = mask["size"]
    return {"segmentation": run_lengths(part, (height, width)), **area}


def _pixels(places: Iterable[float]) -> list[float]:
    return [round(place, _PIXEL) for place in places]


def _of_pipeline(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the stages of a pipeline found of an object, under the names of /v1."""
    more: dict[str, Any] = {}
    if attributes := found.get("attributes"):
        more["attributes"] = dict(likely_names(attributes))
    if classes := found.get("classes"):
        more["classes"] = {each["class_name"]: each["score"] for each in classes}
    if text := found.get("text"):
        more |= {"text": text["text"], "text_score": text["score"]}
    if "embedding" in found:
        more["embedding"] = Embedding.from_json(found, WORDLESS).vector.tolist()
    if error := found.get("error"):
        more["error"] = error["message"]
    return more


def _area(outlines: Iterable[Sequence[float]]) -> float:
    points = (np.array(each, np.float32).reshape(-1, 1, 2) for each in outlines)
    return round(sum(cv2.contourArea(each) for each in points), 2)


def _keypoints(points: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return x, y and COCO's visibility: 2 for a point that is seen, 1 for one that is guessed."""
    rows = ((p["x"], p["y"], 2 if p["score"] >= SEEN else 1) for p in points)
    return [value for row in rows for value in row]


def _categories(model: Predicting, seen: set[int]) -> list[dict[str, Any]]:
    points: dict[str, Any] = {}
    if model.words.skeleton is not None:
        bones = [[one + 1, other + 1] for one, other in model.words.skeleton.bones]
        points = {"keypoints": list(model.words.skeleton.names), "skeleton": bones}
    names = class_names(model.words.labels, seen)
    return [{"id": each, "name": name, **points} for each, name in enumerate(names)]
