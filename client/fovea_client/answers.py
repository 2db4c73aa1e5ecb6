"""The server's responses as typed values.

`_json.py` converts JSON to these classes and back. The fields have the names of the JSON keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fovea_client._masks import Mask, MaskFile, RunLengths
from fovea_client.images import Channels, ImageSource, Source
from fovea_client.results import (
    Attribute,
    Depth,
    Embedding,
    NewPicture,
    Reading,
    Saliency,
    ScoredClass,
    Semantic,
    Value,
)
from fovea_client.shapes import Box, Corner, Keypoint, Rotated

if TYPE_CHECKING:
    from PIL import Image

# Quality of JPEG and WebP files, 1 to 100.
_QUALITY = 92
FiftyOneKind = Literal["boxes", "keypoints", "rotated"]


@dataclass(frozen=True, slots=True)
class Detection:
    """One detected object.

    Attributes:
        box: box around the object, in pixels of the upright image.
        score: confidence, 0 to 1.
        class_id: number of the class, from 0 up.
        class_name: name of the class. If the model has no class names, the number as text.
        mask: mask of a segmentation model, in the requested encoding; None if there is no mask.
        keypoints: keypoints of a pose model; empty for other models.
        rotated: rotated box of a model that detects rotated objects or text. Then `box` is the
            smallest upright box around the rotated box. None for other models.
        corners: the four corners of `rotated`, clockwise. The angle points from the first to the
            second corner.
        track_id: id of the object in a request with the option `track`. None without this option,
            and as long as the tracker has not confirmed the object.
        attributes: results of attribute models that a pipeline runs on the crop of the object.
        classes: result of a pipeline's classifier for the object, best class first.
        text: text on the object that a pipeline's recognition model recognised; None without such
            a model.
        embedding: embedding of the object from a pipeline's model; None without such a model.
        error: error of the pipeline's stage that failed for this object; None if no stage failed.
    """

    box: Box
    score: float
    class_id: int
    class_name: str
    mask: Mask | None = None
    keypoints: tuple[Keypoint, ...] = ()
    rotated: Rotated | None = None
    corners: tuple[Corner, ...] = ()
    track_id: int | None = None
    attributes: tuple[Attribute, ...] = ()
    classes: tuple[ScoredClass, ...] = ()
    text: Reading | None = None
    embedding: Embedding | None = None
    error: ImageError | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the results of a pipeline for this object, as short texts.

        An embedding has no text.
        """
        likely = [each.class_name for one in self.attributes for each in one.likely]
        best = [each.class_name for each in self.classes[:1]]
        text = [] if self.text is None or not self.text.text else [self.text.text]
        return (*likely, *best, *text, *(["failed"] if self.error else []))


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A raw output of a model for one image. The server does not know the meaning of the output.

    Attributes:
        name: name of the output.
        data: values of the output, without the batch dimension.
    """

    name: str
    data: NDArray[Any]


class Shown:
    """Holds the function that reads the image of a result again.

    `source` is not a dataclass field, so results are compared, converted and pickled without it.
    """

    __slots__ = ("source",)
    source: Source


@dataclass(frozen=True, slots=True)
class ImageResult(Shown):
    """Results of one image.

    A notebook shows the image with the results drawn on it. For this purpose, the result of
    `predict` keeps the bytes of the image, or a reduced copy of an array.

    Attributes:
        width: width of the upright image in pixels.
        height: height of the upright image in pixels.
        orientation: EXIF orientation that was applied, 1 to 8.
        detections: detected objects, best first; empty for models of other tasks.
        tensors: raw outputs of a model whose task is "tensors"; empty for other models.
        classes: classes from a classifier, best first; empty for other models.
        semantic: classes of the pixels; None unless the task is "semantic".
        saliency: foreground mask; None unless the task is "saliency".
        depth: depth map; None unless the task is "depth".
        embedding: embedding; None unless the task is "embed".
        reading: recognised text; None unless the task is "read".
        picture: generated image; None unless the task is "image".
        attributes: results of a model with several classifiers, in the order of the model.
    """

    width: int
    height: int
    orientation: int
    detections: tuple[Detection, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    classes: tuple[ScoredClass, ...] = ()
    semantic: Semantic | None = None
    saliency: Saliency | None = None
    depth: Depth | None = None
    embedding: Embedding | None = None
    reading: Reading | None = None
    picture: NewPicture | None = None
    attributes: tuple[Attribute, ...] = ()

    def _repr_html_(self) -> str:
        from fovea_client._display import as_html

        return as_html(self)

    @property
    def values(self) -> tuple[Value, ...]:
        """Return the results that concern the whole image: maps, embeddings, texts, attributes."""
        found: list[Value] = []
        for name in _FIELDS:
            value = getattr(self, name)
            if isinstance(value, Value):
                found.append(value)
            elif isinstance(value, tuple):
                found += (one for one in value if isinstance(one, Value))
        return tuple(found)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the results of the whole image as lines of text."""
        return tuple(line for value in self.values for line in value.lines)

    @property
    def boxes(self) -> NDArray[np.float32]:
        """Return the boxes, float32 [n, 4], x1 y1 x2 y2 in pixels of the upright image."""
        corners = [(d.box.x1, d.box.y1, d.box.x2, d.box.y2) for d in self.detections]
        return np.array(corners, np.float32).reshape(-1, 4)

    @property
    def scores(self) -> NDArray[np.float32]:
        """Return the scores, float32 [n]."""
        return np.array([each.score for each in self.detections], np.float32)

    @property
    def class_ids(self) -> NDArray[np.int32]:
        """Return the class ids, int32 [n]."""
        return np.array([each.class_id for each in self.detections], np.int32)

    @property
    def masks(self) -> NDArray[np.bool_] | None:
        """Return the masks, bool [n, height, width].

        Returns:
            The masks. If a detection has no mask, or if its mask is a polygon, return None.
        """
        known = (d.mask for d in self.detections if isinstance(d.mask, RunLengths | MaskFile))
        masks = [mask.pixels for mask in known]
        if len(masks) != len(self.detections) or not masks:
            return None
        return np.stack(masks)

    @property
    def keypoints(self) -> NDArray[np.float32] | None:
        """Return the keypoints, float32 [n, points, 3], as x and y in pixels and score.

        Returns:
            The keypoints; None if there are none.
        """
        points = [[(p.x, p.y, p.score) for p in d.keypoints] for d in self.detections]
        return np.array(points, np.float32) if points and points[0] else None

    @property
    def rotated(self) -> NDArray[np.float32] | None:
        """Return the rotated boxes, float32 [n, 5], as cx, cy, w, h in pixels and angle in radians.

        Returns:
            The rotated boxes; None if there are none.
        """
        found = [d.rotated for d in self.detections if d.rotated is not None]
        rows = [(r.cx, r.cy, r.w, r.h, r.angle) for r in found]
        return np.array(rows, np.float32) if rows else None

    def plot(self, image: ImageSource | None = None, channels: Channels = "RGB") -> Image.Image:
        """Return a new Pillow image, RGB and upright, with the results drawn in.

        The drawing looks like the server's `annotate` and needs no request. It has boxes, masks,
        keypoints (with bones for a person) and names. Classes, attributes and texts of the whole
        image are listed in a corner. A depth map or a generated image replaces the image.

        Args:
            image: the image that was sent. You can leave it out if the image was a path: the file
                is read again. You can also leave it out after `predict` with bytes, or with an
                array of up to 1000 pixels a side: the result keeps the image. In all other cases,
                pass the image.
            channels: order of the channels of an array.

        Raises:
            ValueError: the image is missing, or its size differs from the sent image; or the result
                cannot be drawn. Tensors and embeddings cannot be drawn. With mask="none", maps and
                generated images cannot be drawn.
            ImportError: Pillow is not installed. The extra `plot` of the package installs it.
            OSError: the file cannot be read.

        Example:
            client.predict("yolov8n", "bus.jpg").image.plot().show()
        """
        from fovea_client._plot import plot

        return plot(self, image, channels)

    def save(
        self,
        path: str | PathLike[str],
        image: ImageSource | None = None,
        channels: Channels = "RGB",
    ) -> None:
        """Write the image that `plot` returns to a file: .jpg, .png or .webp.

        `plot` describes the other arguments and the errors. Any other suffix raises `ValueError`.

        Example:
            client.predict("yolov8n", "bus.jpg").image.save("found.jpg")
        """
        self.plot(image, channels).save(path, quality=_QUALITY)

    def to_coco(
        self, image_id: int, categories: Mapping[str, int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the detections in COCO's results format, ready for `json.dump`.

        Args:
            image_id: id of the image in the dataset.
            categories: class name -> the dataset's `category_id`. By default the `category_id` is
                the class id of the model, which differs from COCO's own ids.

        Raises:
            ValueError: `categories` lacks a class.

        Example:
            rows = result.to_coco(42, {"person": 1, "bus": 6})
        """
        from fovea_client._exports import coco

        return coco(self, image_id, categories)

    def to_supervision(self) -> Any:
        """Return the detections as `supervision.Detections`, for its annotators.

        `OrientedBoxAnnotator` draws rotated boxes. Keypoints have their own type in supervision:
        `KeyPoints(xy=keypoints[..., :2], keypoint_confidence=keypoints[..., 2])`.

        Raises:
            ImportError: supervision is not installed.

        Example:
            drawn = supervision.BoxAnnotator().annotate(image, result.to_supervision())
        """
        from fovea_client._exports import supervision

        return supervision(self)

    def to_fiftyone(self, kind: FiftyOneKind = "boxes") -> Any:
        """Return a FiftyOne label.

        Args:
            kind: label of detections: "boxes" gives `Detections` with masks, "keypoints"
                `Keypoints`, "rotated" `Polylines`. They are empty if nothing was detected.

        Returns:
            For detectors: the label that `kind` names. For other tasks: `Classifications` for a
                classifier, `Segmentation` for classes of pixels (needs mask="png"), or `Heatmap`
                for the foreground or the depth.

        Raises:
            ImportError: fiftyone is not installed.
            ValueError: `kind` is unknown, or the map was not requested.

        Example:
            sample["predictions"] = result.to_fiftyone()
        """
        from fovea_client._exports import fiftyone

        return fiftyone(self, kind)


TASKS: Mapping[str, str] = {
    "detect": "detections",
    "segment": "detections",
    "pose": "detections",
    "obb": "detections",
    "text": "detections",
    "classify": "classes",
    "semantic": "semantic",
    "saliency": "saliency",
    "depth": "depth",
    "embed": "embedding",
    "read": "reading",
    "image": "picture",
    "attributes": "attributes",
    "tensors": "tensors",
}
"""Task of a model -> name of the field of `ImageResult` that holds the results of this task."""

_FIELDS = tuple(each.name for each in fields(ImageResult))


@dataclass(frozen=True, slots=True)
class ImageError:
    """The error of one image among several.

    Attributes:
        code: stable code for programs, e.g. "invalid_image".
        message: message for people.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Duration of a request and of its steps, in milliseconds.

    If the request has several images, each step has the time of the slowest image. For a pipeline
    these are the steps of its detector.

    Attributes:
        stages: name of each stage of a pipeline -> its duration in milliseconds; None for other
            models.
    """

    decode: float
    letterbox: float
    queue: float
    infer: float
    postprocess: float
    total: float
    stages: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The response to one request. A notebook shows its images with the results drawn on them.

    Attributes:
        model: name of the model.
        version: version of the model.
        task: task of the model, a key of `TASKS`.
        images: results in the order of the sent images.
        timing_ms: duration of the request and of its steps, in milliseconds.
    """

    model: str
    version: str
    task: str
    images: tuple[ImageResult | ImageError, ...]
    timing_ms: Timing

    def _repr_html_(self) -> str:
        from fovea_client._display import as_html

        return as_html(self)

    @property
    def image(self) -> ImageResult:
        """Return the result of a request with one image.

        Raises:
            ValueError: the request had several images, or its image failed.
        """
        match self.images:
            case (ImageResult() as only,):
                return only
        raise ValueError(f"the response has {len(self.images)} images: use `images`")

    @property
    def detections(self) -> tuple[Detection, ...]:
        """Return the detections of a request with one image.

        The errors are described at `image`.
        """
        return self.image.detections

    @property
    def classes(self) -> tuple[ScoredClass, ...]:
        """Return the classes of a request with one image, best first.

        The errors are described at `image`.
        """
        return self.image.classes

    def plot(self, image: ImageSource | None = None, channels: Channels = "RGB") -> Image.Image:
        """Return the drawing of a request with one image, as `ImageResult.plot` does.

        For several images, call `plot` of each entry of `images`. The errors are described at
        `image` and at `ImageResult.plot`.

        Example:
            client.predict("yolov8n", "bus.jpg").plot().show()
        """
        return self.image.plot(image, channels)

    def save(
        self,
        path: str | PathLike[str],
        image: ImageSource | None = None,
        channels: Channels = "RGB",
    ) -> None:
        """Write the image that `plot` returns to a file, as `ImageResult.save` does.

        Example:
            client.predict("yolov8n", "bus.jpg").save("found.jpg")
        """
        self.image.save(path, image, channels)
