"""Parses the metadata that exporters write into a model. The metadata is untrusted input."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fovea_engines.results.skeleton import Skeleton, number_points

MAX_KEYPOINTS = 1000
RENAMED = "fovea_renamed"
"""Metadata key for the original names of outputs that `fovea edit` has renamed."""

# Name of a task in an exporter's metadata and on model hubs -> name of the task in heads.
_TASKS = {
    "detection": "detect",
    "object-detection": "detect",
    "segmentation": "segment",
    "instance-segmentation": "segment",
    "keypoints": "pose",
    "classification": "classify",
    "image-classification": "classify",
    "semantic-segmentation": "semantic",
    "depth-estimation": "depth",
    "image-to-image": "image",
    "super-resolution": "image",
    "background-removal": "saliency",
    "text-detection": "text",
    "text-recognition": "read",
    "embedding": "embed",
    "feature-extraction": "embed",
    "image-feature-extraction": "embed",
}


def literal(text: str) -> Any:
    """Parse a Python or JSON literal without evaluating it; return None for anything else."""
    for read in (ast.literal_eval, json.loads):
        try:
            return read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return None


def labels_from_metadata(
    metadata: Mapping[str, str], num_classes: int | None
) -> tuple[str, ...] | None:
    """Read class names from the metadata, in the order of class ids.

    Ultralytics writes `names`: a list, or a dict of id to name, in Python or JSON. PaddlePaddle's
    exporters write `character`, with a name on every line. If the ids in a dict have gaps, the name
    of a missing id is the id as text.

    Returns:
        The names. If they are missing or malformed, or if their number is not `num_classes`, return
            None.
    """
    names = literal(metadata.get("names", "")) or metadata.get("character", "").splitlines()
    if isinstance(names, dict):
        by_id = {str(key): name for key, name in names.items()}
        ids = [str(each) for each in range(num_classes or len(by_id))]
        # Allow gaps between the ids, because COCO's category ids have gaps.
        gaps = num_classes is not None and ids[-1] in by_id and by_id.keys() <= set(ids)
        names = [by_id.get(each, each if gaps else None) for each in ids]
    if not isinstance(names, list | tuple) or not names:
        return None
    if not all(isinstance(name, str | int | float) for name in names):
        return None
    if num_classes is not None and len(names) != num_classes:
        return None
    return tuple(str(name) for name in names)


def names_fault(metadata: Mapping[str, str], num_classes: int) -> str | None:
    """Return the reason why the names in the metadata do not fit `num_classes` classes.

    If they fit, or if there are no names, return None.
    """
    names = literal(metadata.get("names", ""))
    if not names or not isinstance(names, dict | list | tuple):
        return None
    last = num_classes - 1
    if isinstance(names, dict) and (more := [i for i in map(str, names) if not _within(i, last)]):
        return f"the file names class {more[-1]}, but the model's classes are 0 to {last}"
    return f"the file names {len(names)} classes, but the model has {num_classes}"


def _within(class_id: str, last: int) -> bool:
    return class_id.isdecimal() and int(class_id) <= last


def renamed_outputs(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Read the original names of renamed outputs: new name -> original name."""
    names = literal(metadata.get(RENAMED, ""))
    if not isinstance(names, dict):
        return {}
    return {str(new): str(old) for new, old in names.items()}


def task_from_metadata(metadata: Mapping[str, str]) -> str | None:
    """Read the task and return its name in heads. If the metadata has no task, return None."""
    task = "pose" if "kpt_shape" in metadata else metadata.get("task")
    return own_task(task) if task else None


def own_task(name: str) -> str:
    """Return the name in heads of a task that has another name elsewhere, e.g. in an exporter."""
    return _TASKS.get(name, name)


def skeleton_from_metadata(metadata: Mapping[str, str]) -> tuple[Skeleton, int] | None:
    """Read the names of the keypoints, and the number of values per keypoint.

    A keypoint has 2 values (x y) or 3 values (x y score). Ultralytics writes `kpt_shape`, and for
    each class id the names of its keypoints in `kpt_names`. Without a valid `kpt_shape`, return
    None.
    """
    match literal(metadata.get("kpt_shape", "")):
        case [int(count), (2 | 3) as numbers] if 0 < count <= MAX_KEYPOINTS:
            pass
        case _:
            return None
    skeleton = number_points(count)
    names = literal(metadata.get("kpt_names", ""))
    first = next(iter(names.values()), None) if isinstance(names, dict) else None
    if isinstance(first, list | tuple) and len(first) == count:
        skeleton = replace(skeleton, names=tuple(map(str, first)))
    return skeleton, numbers


def image_size(metadata: Mapping[str, str]) -> tuple[int, int] | None:
    """Read (height, width) in pixels from `imgsz`, which is a number or a list of two numbers.

    If there is no valid `imgsz`, return None.
    """
    size = literal(metadata.get("imgsz", ""))
    sides = [size, size] if isinstance(size, int) else size
    match sides:
        case [int(height), int(width)] if height > 0 and width > 0:
            return height, width
    return None


def own_preprocess(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the fields of `PreprocessSpec` in which LibreYOLO differs from the original code."""
    fields: dict[str, Any] = {}
    if metadata.get("letterbox_pad") == "center":
        fields |= {"anchor": "center", "rounding": "down"}
    if metadata.get("model_family") == "yolonas" and metadata.get("task") != "obb":
        fields["resample"] = "antialias"
    return fields


def largest_stride(metadata: Mapping[str, str]) -> int:
    """Return the stride in pixels. Both input sides must be multiples of it. The default is 32."""
    stride = literal(metadata.get("stride", ""))
    strides = stride if isinstance(stride, list | tuple) else [stride]
    sound = [value for value in strides if isinstance(value, int | float) and 1 <= value <= 512]
    return int(max(sound)) if sound else 32
