"""Compares detections with labels by COCO's rules, with an implementation of COCO's evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from faster_coco_eval.core import mask as masks_of_coco
from numpy.typing import NDArray

from fovea_engines.evaluation.agreement.overlap import rotated_iou, sigmas
from fovea_engines.evaluation.dataset import Dataset
from fovea_engines.evaluation.evaluate import CompactDetections
from fovea_engines.evaluation.labelled_image import LabelledImage
from fovea_engines.repository.accuracy import Accuracy
from fovea_engines.repository.figures import Overlap
from fovea_engines.results.class_names import class_name
from fovea_preprocess.errors import InvalidOption

Row = dict[str, Any]

_KINDS: Final[dict[Overlap, str]] = {"mask IoU": "segm", "OKS": "keypoints"}
_SIZES: Final = ("small", "medium", "large")


def mean_ap(dataset: Dataset, answers: Sequence[CompactDetections]) -> Accuracy:
    """Measure the detections on each image of a dataset by COCO's rules.

    The detections are matched with labelled objects in the order of their scores, best first. Each
    detection gets the object of its class that overlaps it most and has no match yet. Only the best
    100 detections per class and image count, or 20 with keypoints. Precision is measured at 101
    recalls (Lin et al., Microsoft COCO, 2014, and cocoapi's `cocoeval.py`).

    If labels and detections have masks or keypoints, the masks or keypoints are compared, and the
    result also contains the accuracy of the boxes. Rotated boxes are compared as rectangles.

    Raises:
        InvalidOption: the detections are rotated boxes, but the labels are not.
    """
    own, indices = coco_indices(dataset, answers)
    accuracy = _accuracy(own, indices, dataset)
    if own in ("IoU", "rotated IoU"):
        return accuracy
    boxes = _accuracy("IoU", indices, dataset)
    return replace(accuracy, box_map50_95=boxes.map50_95, box_map50=boxes.map50)


def coco_indices(
    dataset: Dataset, answers: Sequence[CompactDetections]
) -> tuple[Overlap, list[COCO]]:
    """Return the kind of overlap, and the labels and detections as COCO documents.

    Raises:
        InvalidOption: the detections are rotated boxes, but the labels are not.
    """
    images = dataset.images
    classes = sorted({int(class_id) for image in images for class_id in image.class_ids})
    own = _overlap_of(dataset, answers)
    documents = (
        _labels_document(classes, images, rotated=own == "rotated IoU"),
        _answers_document(classes, images, answers),
    )
    return own, [build_index(document) for document in documents]


def build_index(document: Row) -> COCO:
    """Return a COCO document in the form that COCO's evaluation reads."""
    index = COCO()
    index.dataset = document
    index.createIndex()
    return index


def judge(overlap: Overlap, indices: Sequence[COCO], dataset: Dataset) -> COCOeval_faster:
    """Return COCO's evaluation of detections, `indices[1]`, against labels, `indices[0]`."""
    kind = _RotatedJudge if overlap == "rotated IoU" else COCOeval_faster
    found = kind(*indices, _KINDS.get(overlap, "bbox"))
    if overlap == "OKS":
        points = next(one.keypoints for one in dataset.images if one.keypoints is not None)
        found.params.kpt_oks_sigmas = sigmas(points.shape[1])
    return found


def _overlap_of(dataset: Dataset, answers: Sequence[CompactDetections]) -> Overlap:
    """Return the kind of overlap for comparing labels and detections."""
    images = dataset.images
    if any(answer.found.rotated is not None for answer in answers):
        if any(image.rotated is None for image in images):
            raise InvalidOption(
                f"{dataset.path} has labels of upright boxes, but the model detects rotated "
                "boxes: give a folder of YOLO labels with the corners of each object, class x1 y1 "
                "x2 y2 x3 y3 x4 y4"
            )
        return "rotated IoU"
    outlined = all(image.outlines is not None for image in images if len(image.boxes))
    if outlined and all(answer.masks is not None for answer in answers if len(answer.found)):
        return "mask IoU"
    marked = [image.keypoints for image in images if len(image.boxes)]
    marked += [answer.found.keypoints for answer in answers if len(answer.found)]
    counts = {None if points is None else points.shape[1] for points in marked}
    return "OKS" if len(counts) == 1 and None not in counts else "IoU"


def _accuracy(overlap: Overlap, indices: Sequence[COCO], dataset: Dataset) -> Accuracy:
    found = judge(overlap, indices, dataset)
    found.evaluate()
    found.accumulate()
    # The axes are the overlap (.50 to .95), recall (0 to 1), class, range of areas, and limit of
    # detections per image.
    precision = np.asarray(found.eval["precision"])[..., -1]
    areas = list(found.params.areaRngLbl)
    everything = precision[..., areas.index("all")]
    per_class = {
        class_name(dataset.class_names, class_id): _mean(everything[:, :, index])
        for index, class_id in enumerate(found.params.catIds)
    }
    return Accuracy(
        images=len(dataset.images),
        map50_95=_mean(everything) or 0.0,
        map50=_mean(everything[0]) or 0.0,
        per_class={name: value for name, value in per_class.items() if value is not None},
        by_size={
            size: _mean(precision[..., areas.index(size)]) if size in areas else None
            for size in _SIZES
        },
        overlap=overlap,
    )


def _mean(precision: NDArray[np.float64]) -> float | None:
    """Return the mean over the classes that have objects. COCO marks all other classes with -1."""
    defined = precision[precision > -1]
    return float(defined.mean()) if defined.size else None


class _RotatedJudge(COCOeval_faster):  # type: ignore[misc]
    """Compares annotations by their field `rotated`, a row cx cy w h angle, instead of by bbox."""

    def computeIoU(self, imgId: int, catId: int) -> list[float] | NDArray[np.float64]:  # noqa: N802, N803
        """Return the overlaps [detections, objects] of one class on one image.

        The detections are sorted, best first.
        """
        objects: list[dict[str, Any]]
        found: list[dict[str, Any]]
        objects, found = (
            data.get_instances([imgId], [catId], True)[0][0]
            for data in (self.gt_dataset, self.dt_dataset)
        )
        if not objects or not found:
            return []
        found = sorted(found, key=lambda one: -one["score"])[: self.params.maxDets[-1]]
        return rotated_iou(
            *(np.array([one["rotated"] for one in each]) for each in (found, objects))
        )


def _labels_document(
    classes: Sequence[int], images: Sequence[LabelledImage], *, rotated: bool
) -> Row:
    """Return labels as a COCO document, with outlines and keypoints if the labels have them.

    If `rotated` is True, objects also have their rotated rectangles.
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


def _answers_document(
    classes: Sequence[int], images: Sequence[LabelledImage], answers: Sequence[CompactDetections]
) -> Row:
    """Return detections as a COCO document.

    The area of an object is the area of its mask. Without a mask, it is the area of its box.
    """
    rows = []
    for answer in answers:
        found, masks = answer.found, answer.masks
        columns: Row = {"score": found.scores.tolist()}
        if masks is not None:
            areas = masks_of_coco.area([dict(mask) for mask in masks]).tolist() if masks else []
            columns |= {"segmentation": masks, "area": areas}
        if found.keypoints is not None:
            columns |= _points(found.keypoints)
        if found.rotated is not None:
            columns |= _rectangles(found.rotated)
        rows.append(_annotations(found.boxes, found.class_ids, columns))
    return _document(classes, images, rows)


def _points(keypoints: NDArray[np.float32]) -> Row:
    seen = (keypoints[..., 2] > 0).sum(axis=1)
    rows = keypoints.astype(np.float64).reshape(len(keypoints), 3 * keypoints.shape[1])
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
        # The ids start at 1, because COCOeval uses 0 for "no match".
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
