r"""An auto-annotation function for CVAT: a Fovea server annotates the images of a task.

cvat-cli task auto-annotate 5 --function-module fovea_client.cvat \
    -p url=str:http://127.0.0.1:8000 -p model=str:yolov8n
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Unpack
from weakref import finalize

from fovea_client._client import Client
from fovea_client._exports import import_package
from fovea_client._masks import Mask, Outlines, RunLengths
from fovea_client._requests import PredictOptions
from fovea_client._skeleton import SEEN
from fovea_client.answers import TASKS, Detection, ImageResult
from fovea_client.models import Model

# Task of a model -> type of its labels in CVAT.
_TYPES = {
    "detect": "rectangle",
    "obb": "rectangle",
    "text": "rectangle",
    "segment": "mask",
    "semantic": "mask",
    "pose": "skeleton",
    "classify": "tag",
}


class DetectionFunction:
    """Annotates images with rectangles, masks, polygons, skeletons or tags.

    The task of the model determines the kind of annotation.

    Args:
        url: URL of the server.
        model: name of the model.
        boxes: if True, also return rectangles for a model that finds masks or keypoints.
        **options: options of each request, e.g. `conf` or `tile`: see `PredictOptions`.

    Raises:
        ImportError: cvat-sdk is not installed.
        ValueError: CVAT has no annotations for the task of the model, or the model has no names for
            its classes or keypoints.
    """

    def __init__(
        self, url: str, model: str, *, boxes: bool = False, **options: Unpack[PredictOptions]
    ) -> None:
        self._cvat = import_package("cvat_sdk.auto_annotation", "cvat-sdk")
        self._encode_mask = import_package("cvat_sdk.masks", "cvat-sdk").encode_mask
        self._client = Client(url, retries=3)
        # Close the client when this object is garbage-collected: CVAT does not call a method at the
        # end of an annotation run.
        finalize(self, self._client.close)
        self._name, self._options = model, options
        described = self._client.model(model, options.get("version"))
        self._type = _type(described, boxes)
        self._scored = TASKS.get(described.task or "") == "detections"
        # CVAT rejects two labels with the same name, but a model may have two classes with it.
        ids: dict[str, int] = {}
        self._ids = [ids.setdefault(name, len(ids)) for name in _class_names(described)]
        self.spec = self._cvat.DetectionFunctionSpec(
            labels=[self._label(name, number, described) for name, number in ids.items()]
        )

    def _label(self, name: str, number: int, described: Model) -> Any:
        if self._type != "skeleton":
            return self._cvat.label_spec(name, number, type=self._type)
        points = enumerate(_keypoint_names(described))
        sublabels = [self._cvat.keypoint_spec(point, index) for index, point in points]
        return self._cvat.skeleton_label_spec(name, number, sublabels)

    def detect(self, context: Any, image: Any) -> list[Any]:
        """Return the annotations of a Pillow image, as shapes or tags of CVAT.

        Raises:
            ServerError, ConnectionFailed, UnexpectedAnswer: `Client.predict` describes them.
            ValueError: the model found a class without a name.
        """
        options = self._options.copy()
        least = context.conf_threshold
        if least is not None and self._scored:
            options["conf"] = least
        if self._type == "mask":
            options["mask"] = "polygon" if context.conv_mask_to_poly else "rle"
        found = self._client.predict(self._name, image, **options).image
        match self._type:
            case "tag":
                best = [each for each in found.classes[:1] if each.score >= (least or 0)]
                return [self._cvat.tag(self._number(each.class_id)) for each in best]
            case "mask":
                areas = found.semantic.classes if found.semantic else found.detections
                return [shape for each in areas for shape in self._masks(each.class_id, each.mask)]
            case "skeleton":
                return [self._skeleton(each, found) for each in found.detections]
        return [self._rectangle(each) for each in found.detections]

    def _number(self, class_id: int) -> int:
        """Return CVAT's label id of a class."""
        if class_id >= len(self._ids):
            raise ValueError(
                f"class {class_id} of {self._name!r} has no label: build the model with `fovea "
                "build --labels`, with a label for each class"
            )
        return self._ids[class_id]

    def _masks(self, class_id: int, mask: Mask | None) -> Iterator[Any]:
        if isinstance(mask, RunLengths) and (pixels := mask.pixels).any():
            yield self._cvat.mask(self._number(class_id), self._encode_mask(pixels))
        elif isinstance(mask, Outlines):
            for outline in mask.polygons:
                yield self._cvat.polygon(self._number(class_id), list(outline))

    def _skeleton(self, found: Detection, image: ImageResult) -> Any:
        points = [
            self._cvat.keypoint(
                index,
                [point.x, point.y],
                occluded=point.score < SEEN,
                outside=not (0 <= point.x <= image.width and 0 <= point.y <= image.height),
            )
            for index, point in enumerate(found.keypoints)
        ]
        return self._cvat.skeleton(self._number(found.class_id), points)

    def _rectangle(self, found: Detection) -> Any:
        number, box = self._number(found.class_id), found.box
        if (turned := found.rotated) is None:
            return self._cvat.rectangle(number, [box.x1, box.y1, box.x2, box.y2])
        across, down = turned.w / 2, turned.h / 2
        corners = [turned.cx - across, turned.cy - down, turned.cx + across, turned.cy + down]
        return self._cvat.rectangle(number, corners, rotation=math.degrees(turned.angle) % 360)


create = DetectionFunction


def _type(described: Model, boxes: bool) -> str:
    """Return the type of CVAT labels that suits the task of a model."""
    if boxes and described.task in ("segment", "pose"):
        return "rectangle"
    if described.task not in _TYPES:
        raise ValueError(
            f"CVAT cannot store the results of {described.name!r}, whose task is "
            f"{described.task!r}; it supports {', '.join(_TYPES)}"
        )
    return _TYPES[described.task]


def _class_names(described: Model) -> tuple[str, ...]:
    if described.labels is None:
        raise ValueError(
            f"the classes of {described.name!r} have no names: build the model with `fovea build "
            "--labels`"
        )
    return described.labels


def _keypoint_names(described: Model) -> list[str]:
    skeleton = (described.card or {}).get("skeleton")
    if skeleton is None:
        raise ValueError(
            f"the keypoints of {described.name!r} have no names, because the model has no card "
            f"({described.card_reason}): build the model with `fovea build`, or request boxes only"
        )
    return list(skeleton["names"])
