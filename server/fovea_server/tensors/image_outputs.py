"""The tensors that encoded images are answered with, as documents for clients.

They are not among the outputs of a model's metadata: perf_analyzer and Ultralytics' client ask for
all outputs that are listed there, also when they send tensors.
"""

from __future__ import annotations

from typing import Any

from fovea_engines.detect.heads.base import Detector, Head

_SCORED_CLASSES = (
    ("scores", "FP32", (-1, -1)),
    ("class_ids", "INT32", (-1, -1)),
    ("class_names", "BYTES", (-1, -1)),
)
_MAPS = {
    "semantic": ("class_map", "UINT16", (-1, -1, -1)),
    "saliency": ("saliency", "FP32", (-1, -1, -1)),
    "depth": ("depth", "FP32", (-1, -1, -1)),
}


def image_outputs(head: Head) -> list[dict[str, Any]]:
    """Return name, datatype and shape of each tensor; -1 is the images, or a size that varies."""
    tensors: list[tuple[str, str, tuple[int, ...]]] = []
    if isinstance(head, Detector) or head.task == "text":
        tensors += [("num_detections", "INT32", (-1,)), ("boxes", "FP32", (-1, -1, 4))]
    if head.task in _MAPS:
        tensors += [_MAPS[head.task], ("sizes", "INT32", (-1, 2))]
    else:
        tensors += _SCORED_CLASSES
    if head.task == "segment":
        tensors.append(("masks", "BYTES", (-1, -1)))
    if head.skeleton is not None:
        tensors.append(("keypoints", "FP32", (-1, -1, len(head.skeleton.names), 3)))
    if head.task in ("obb", "text"):
        tensors.append(("rotated", "FP32", (-1, -1, 5)))
    return [
        {"name": name, "datatype": datatype, "shape": list(shape)}
        for name, datatype, shape in tensors
    ]
