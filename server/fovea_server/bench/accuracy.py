"""Accuracy of the answers that a server gave under load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from fovea_engines.detect.detections import Detections
from fovea_preprocess.errors import UnsupportedModel

if TYPE_CHECKING:
    from fovea_engines.evaluate.accuracy.dataset import Dataset
    from fovea_engines.repository.accuracy import Accuracy


def answered_accuracy(answers: Mapping[int, bytes], dataset: Dataset) -> Accuracy | None:
    """Measure the answers of /v1 to the images of a dataset by COCO's rules.

    Args:
        answers: bodies, by the number of the image; images without one are left out.
        dataset: as it was read, with its own classes.

    Returns:
        None where no image was answered.

    Raises:
        UnsupportedModel: the answers have no boxes.
        InvalidOption: the images have another size than their labels', or a class is unknown.
    """
    from fovea_engines.evaluate.accuracy.answer import Answer
    from fovea_engines.evaluate.accuracy.evaluate import mean_ap

    if not answers:
        return None
    images, found = [], []
    labels: dict[int, str] = {}
    for number, body in sorted(answers.items()):
        answer = orjson.loads(body)["images"][0]
        if "detections" not in answer:
            raise UnsupportedModel("the model serves tensors only: there are no boxes to measure")
        image = dataset.images[number]
        image.check_size(answer["width"], answer["height"])
        images.append(image)
        objects = answer["detections"]
        masks = (each.get("mask") for each in objects)
        found.append(Answer.with_masks(_detections(objects), masks))
        for each in answer["detections"]:
            if each["class_name"] != str(each["class_id"]):
                labels[each["class_id"]] = each["class_name"]
    named = dataset.for_model(labels_by_id(labels, dataset))
    kept = {image.path for image in images}
    return mean_ap(
        replace(named, images=tuple(one for one in named.images if one.path in kept)), found
    )


def labels_by_id(labels: Mapping[int, str], dataset: Dataset) -> list[str | None] | None:
    """Return class names by id, None for one that no answer had; no list without labels.

    The list is at least as long as the dataset's own list of classes.
    """
    if not labels:
        return None
    count = max(len(dataset.class_names or ()), *(number + 1 for number in labels))
    return [labels.get(class_id) for class_id in range(count)]


def _detections(answer: list[dict[str, Any]]) -> Detections:
    points = [
        [[point["x"], point["y"], point["score"]] for point in each["keypoints"]]
        for each in answer
        if "keypoints" in each
    ]
    corners = [[each["box"][name] for name in ("x1", "y1", "x2", "y2")] for each in answer]
    rotated = [list(each["rotated"].values()) for each in answer if "rotated" in each]
    return Detections(
        boxes=np.array(corners, np.float32).reshape(-1, 4),
        scores=np.array([each["score"] for each in answer], np.float32),
        class_ids=np.array([each["class_id"] for each in answer], np.int32),
        rotated=np.array(rotated, np.float32) if rotated else None,
        keypoints=np.array(points, np.float32) if points else None,
    )
