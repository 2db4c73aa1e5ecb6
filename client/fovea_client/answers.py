"""Defines the server's answers as typed values.

`_json.py` reads and writes them by their fields.
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

# The quality of JPEG and WebP files.
_QUALITY = 92
FiftyOneKind = Literal["boxes", "keypoints", "rotated"]


@dataclass(frozen=True, slots=True)
class Detection:
    """One thing found.

    Attributes:
        score: 0 to 1.
        mask: of a segmenter, in the form that was requested: `RunLengths`, `Outlines` or
            `MaskFile`; None if there is no mask.
        keypoints: of a pose model.
        rotated: of a model of rotated boxes or of text, whose `box` is around it; None of others.
        corners: the four of `rotated`, clockwise; between the second and the third the angle
            points.
        track_id: of a request with `track`; None without, and until the tracker is sure.
        attributes: of a pipeline, like the three below: what other models say of a crop of it.
        classes: best first.
        text: None where nothing reads it.
        embedding: None where nothing makes a vector of it.
        error: the reason why a stage of the pipeline failed for it.
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
        """Return what a pipeline found of it, in a few words each; a vector has none."""
        likely = [each.class_name for one in self.attributes for each in one.likely]
        best = [each.class_name for each in self.classes[:1]]
        text = [] if self.text is None or not self.text.text else [self.text.text]
        return (*likely, *best, *text, *(["failed"] if self.error else []))


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A raw output row of a model whose head is not recognised."""

    name: str
    data: NDArray[Any]


class Shown:
    """Finds the image of a result again; no field, so not compared, dumped or pickled."""

    __slots__ = ("source",)
    source: Source


@dataclass(frozen=True, slots=True)
class ImageResult(Shown):
    """Results of one image.

    A notebook shows the image with the results drawn on it. For that it keeps an image that was
    sent to `predict` as bytes, and of an array a small copy.

    Attributes:
        width: of the upright image, pixels.
        height: of the upright image, pixels.
        orientation: EXIF orientation that was applied, 1 to 8.
        detections: best first; empty when nothing was found, or for a model of another task.
        classes: of a classifier, best first.
        tensors: raw outputs, for a model whose head is not recognised.
        semantic: the classes, for a model of that task; None otherwise, and so are `saliency`,
            `depth`, `embedding`, `reading` and `picture`.
        attributes: of a model with several classifiers, in its order.
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
        """Return the results of the whole image, of tasks that find neither objects nor classes."""
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
        """Return the results of the whole image, for people."""
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
        """Return the masks, bool [n, height, width]; None unless all are run lengths or files."""
        known = (d.mask for d in self.detections if isinstance(d.mask, RunLengths | MaskFile))
        masks = [mask.pixels for mask in known]
        if len(masks) != len(self.detections) or not masks:
            return None
        return np.stack(masks)

    @property
    def keypoints(self) -> NDArray[np.float32] | None:
        """Return the keypoints, float32 [n, points, 3], x y in pixels and score, or None."""
        points = [[(p.x, p.y, p.score) for p in d.keypoints] for d in self.detections]
        return np.array(points, np.float32) if points and points[0] else None

    @property
    def rotated(self) -> NDArray[np.float32] | None:
        """Return the rotated boxes, float32 [n, 5], cx cy w h in pixels and angle, or None."""
        found = [d.rotated for d in self.detections if d.rotated is not None]
        rows = [(r.cx, r.cy, r.w, r.h, r.angle) for r in found]
        return np.array(rows, np.float32) if rows else None

    def plot(self, image: ImageSource | None = None, channels: Channels = "RGB") -> Image.Image:
        """Return the image with the results drawn in, a new image of Pillow, RGB and upright.

        Objects are drawn as the server's `annotate` draws them, without a request: boxes, masks,
        keypoints (with bones if they are of a person) and their names; classes, attributes and
        texts of the whole image are listed in its corner. A depth map, and a picture that a network
        made, take the image's place.

        Args:
            image: that was sent. By default a path is read again, and after `predict` also bytes
                and arrays of up to 1000 pixels a side are there. It is needed after `predict` of a
                larger array, an address or an open file, after `stream`, and after `predict_many`
                of anything but a path.
            channels: order of the channels of an array.

        Raises:
            ValueError: the image is needed, or is of another size; or nothing can be drawn: of
                tensors, vectors and, with mask="none", of maps and pictures.
            ImportError: Pillow is not installed, which the extra `plot` brings.
            OSError: the file cannot be read.
        """
        from fovea_client._plot import plot

        return plot(self, image, channels)

    def save(
        self,
        path: str | PathLike[str],
        image: ImageSource | None = None,
        channels: Channels = "RGB",
    ) -> None:
        """Write what `plot` returns to a file, whose suffix names its format: .jpg, .png, .webp.

        The other arguments and the errors are as for `plot`; `ValueError` for another suffix.
        """
        self.plot(image, channels).save(path, quality=_QUALITY)

    def to_coco(
        self, image_id: int, categories: Mapping[str, int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the detections as COCO's results have them, to be dumped as JSON.

        Args:
            image_id: of the image in the dataset.
            categories: the dataset's `category_id` of each class name. By default it is the
                model's class id; the datasets of COCO count otherwise. A `ValueError` names a class
                that is missing.
        """
        from fovea_client._exports import coco

        return coco(self, image_id, categories)

    def to_supervision(self) -> Any:
        """Return a `supervision.Detections`; ImportError if supervision is not installed.

        Its annotators draw them into an image: boxes, masks, and rotated boxes by
        `OrientedBoxAnnotator`. Keypoints are a type of its own there:
        `KeyPoints(xy=keypoints[..., :2], keypoint_confidence=keypoints[..., 2])`.
        """
        from fovea_client._exports import supervision

        return supervision(self)

    def to_fiftyone(self, kind: FiftyOneKind = "boxes") -> Any:
        """Return a label of FiftyOne; ImportError if fiftyone is not installed.

        Of detections: `Detections` with their masks, for `kind="keypoints"` `Keypoints`, and for
        "rotated" `Polylines`, where nothing was found too. Otherwise `Classifications`, a
        `Segmentation` of classes, which takes mask="png", or a `Heatmap` of foreground or depth.
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
"""Task of a model -> the field of an `ImageResult` that holds its results."""

_FIELDS = tuple(each.name for each in fields(ImageResult))


@dataclass(frozen=True, slots=True)
class ImageError:
    """A stable word for programs, a sentence for people.

    It is of one image among several.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds by stage (of the slowest image in each) and in all.

    Those of a pipeline are of its detector, and `stages` has each of its stages by name.
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
    """The answer to one request; `images` are in the order in which they were sent.

    A notebook shows the images with the results drawn on them.
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
        """Return the result of a request with one image; `ValueError` if it had several."""
        match self.images:
            case (ImageResult() as only,):
                return only
        raise ValueError(f"the answer is for {len(self.images)} images: go through `images`")

    @property
    def detections(self) -> tuple[Detection, ...]:
        """Return the detections of a request with one image; raises as `image` does."""
        return self.image.detections

    @property
    def classes(self) -> tuple[ScoredClass, ...]:
        """Return the classes of a request with one image, best first; raises as `image` does."""
        return self.image.classes

    def plot(self, image: ImageSource | None = None, channels: Channels = "RGB") -> Image.Image:
        """Return the image of a request with one image, as `ImageResult.plot` does.

        Of several, each of `images` has its own. Raises as `image` does, too.
        """
        return self.image.plot(image, channels)

    def save(
        self,
        path: str | PathLike[str],
        image: ImageSource | None = None,
        channels: Channels = "RGB",
    ) -> None:
        """Write what `plot` returns to a file, as `ImageResult.save` does."""
        self.image.save(path, image, channels)
