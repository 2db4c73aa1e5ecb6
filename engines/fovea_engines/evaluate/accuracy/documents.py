"""Writes labels and answers as COCO's documents, which its evaluation reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.evaluate.accuracy.answer import Answer
from fovea_engines.evaluate.accuracy.labelled_image import LabelledImage

Row = dict[str, Any]


def labels_document(
    classes: Sequence[int], images: Sequence[LabelledImage], *, rotated: bool
) -> Row:
    """Return labelled images, of which each object has its outline and keypoints, if it has any.

    It has its rectangle where the answers have `rotated` ones.
    """
    rows = []
    for image in images:
        columns: Row = {"area": image.areas.tolist(), "iscrowd": image.crowd.astype(int).tolist()}
        if image.outlines is not None:
            columns["segmentation"] = image.outlines
        if image.keypoints is not None:
            columns |= _points(image.keypoints)
        if rotated and image.rotated is not None:
            columns |= _rectangles(image.rotated)
        rows.append(_annotations(image.boxes, image.class_ids, columns))
    return _document(classes, images, rows)


def answers_document(
    classes: Sequence[int], images: Sequence[LabelledImage], answers: Sequence[Answer]
) -> Row:
    """Return a model's answers; the area of an object is that of its mask, or else of its box."""
    from faster_coco_eval.core import mask as coco

    rows = []
    for answer in answers:
        found, masks = answer.found, answer.masks
        columns: Row = {"score": found.scores.tolist()}
        if masks is not None:
            areas = coco.area([dict(mask) for mask in masks]).tolist() if masks else []
            columns |= {"segmentation": masks, "area": areas}
        if found.keypoints is not None:
            columns |= _points(found.keypoints)
        if found.rotated is not None:
            columns |= _rectangles(found.rotated)
        rows.append(_annotations(found.boxes, found.class_ids, columns))
    return _document(classes, images, rows)


def _points(keypoints: NDArray[np.float32]) -> Row:
    seen = (keypoints[..., 2] > 0).sum(axis=1)
    rows = keypoints.astype(np.float64).reshape(len(keypoints), -1)
    return {"keypoints": rows.tolist(), "num_keypoints": seen.tolist()}


def _rectangles(rotated: NDArray[np.float32]) -> Row:
    return {"rotated": rotated.tolist(), "area": (rotated[:, 2] * rotated[:, 3]).tolist()}


def _document(
    classes: Sequence[int], images: Sequence[LabelledImage], rows: Sequence[Iterable[Row]]
) -> Row:
    annotations = (row | {"image_id": image} for image, each in enumerate(rows) for row in each)
    return {
        "images": [
            {"id": number, "width": image.width, "height": image.height}
            for number, image in enumerate(images)
        ],
        "categories": [{"id": class_id} for class_id in classes],
        # Ids start at 1, because 0 means "no match" to COCOeval.
        "annotations": [row | {"id": number} for number, row in enumerate(annotations, start=1)],
    }


def _annotations(
    boxes: NDArray[np.float32], class_ids: NDArray[np.int32], columns: Row
) -> Iterator[Row]:
    corners = boxes.astype(np.float64)
    bboxes = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
    columns = {"area": (bboxes[:, 2] * bboxes[:, 3]).tolist()} | columns
    columns |= {"category_id": class_ids.tolist(), "bbox": bboxes.tolist()}
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))
