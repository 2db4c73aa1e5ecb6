"""The schemas of /v1 for the OpenAPI page.

For speed, requests are parsed (`body.py`) and answers are written (`image_json.py`) without them;
tests check both against them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, Self, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic.json_schema import SkipJsonSchema

from fovea_engines.detect.options import PredictOptions

Absent = SkipJsonSchema[None]
"""A field that may be left out, and is never null."""


class ImageSource(BaseModel):
    """An image in a JSON request: exactly one of `data` and `url`."""

    model_config = ConfigDict(extra="forbid")

    data: str | Absent = Field(None, description="the encoded image, base64")
    url: str | Absent = Field(None, description="http(s) address (needs `--allow-url`)")


# The options have one definition, which requests are also parsed by.
_TYPES = get_type_hints(PredictOptions)
_FIELDS: dict[str, Any] = {
    "images": Annotated[list[ImageSource], Field(min_length=1)],
    **{
        option.name: (_TYPES[option.name], Field(option.default, **option.metadata))
        for option in fields(PredictOptions)
    },
}
PredictJson = create_model(
    "PredictJson",
    __doc__="A JSON request.",
    __config__=ConfigDict(extra="forbid"),
    **_FIELDS,
)


class Box(BaseModel):
    """Corners in pixels of the upright original."""

    x1: float
    y1: float
    x2: float
    y2: float


class Mask(BaseModel):
    """A mask as the option `mask` asks for it: run lengths, polygons, or a PNG file.

    Run lengths are those of COCO, which pycocotools decodes. The file is of the part of the image
    that holds the mask, white on the object.
    """

    size: Annotated[list[int], Field(description="height, width", min_length=2, max_length=2)]
    counts: str | Absent = Field(None, description="COCO's compressed run lengths")
    polygons: list[list[float]] | Absent = Field(None, description="x, y, x, y, ... in pixels")
    left: int | Absent = Field(None, description="column of the image at which `png` begins")
    top: int | Absent = Field(None, description="row of the image at which `png` begins")
    png: str | Absent = Field(None, description="the file in base64")


class Keypoint(BaseModel):
    """A named point, in pixels of the upright original; it may lie outside."""

    name: str
    x: float
    y: float
    score: float


class Rotated(BaseModel):
    """A rotated rectangle in pixels of the upright original; it may reach outside.

    The angle is that of the width, in radians from the x axis towards the y axis (clockwise, as y
    points down), -pi/4 to 3/4 pi; w >= h.
    """

    cx: float
    cy: float
    w: float
    h: float
    angle: float


class Corner(BaseModel):
    """A corner of a rotated rectangle, in pixels of the upright original."""

    x: float
    y: float


class Detection(BaseModel):
    """One thing found."""

    box: Box
    score: float
    class_id: int
    class_name: str
    mask: Mask | Absent = Field(None, description="of a segmenter")
    keypoints: list[Keypoint] | Absent = Field(None, description="of a pose model")
    rotated: Rotated | Absent = Field(None, description="of a model of rotated boxes or of text")
    corners: Annotated[list[Corner], Field(min_length=4, max_length=4)] | Absent = Field(
        None,
        description="of `rotated`, clockwise; between the second and the third the angle points",
    )


class ScoredClass(BaseModel):
    """A class of the whole image; the scores of all classes add up to 1."""

    class_id: int
    class_name: str
    score: float


class ClassArea(BaseModel):
    """One class of an image."""

    class_id: int
    class_name: str
    pixels: Annotated[int, Field(description="number of its pixels")]
    share: Annotated[float, Field(description="of all pixels", ge=0, le=1)]
    mask: Mask | Absent = Field(None, description="run lengths or polygons")


class Semantic(BaseModel):
    """The classes of an image, the largest first."""

    classes: list[ClassArea]
    png: str | Absent = Field(
        None,
        description="with mask=png: an indexed PNG file in base64, its index the class, and 255 a "
        "class that the request leaves out; of 16 bits and 65535 with classes of 255 and over",
    )


class Saliency(BaseModel):
    """The foreground of an image."""

    share: Annotated[float, Field(description="of the image that is foreground", ge=0, le=1)]
    png: str | Absent = Field(None, description="a grey PNG file of 8 bits in base64")


class Depth(BaseModel):
    """The depths of an image."""

    min: float
    max: float
    unit: Literal["m"] | None = Field(description="null: the model's own scale")
    png: str | Absent = Field(None, description="a grey PNG file of 16 bits in base64")
    scale: float | Absent = Field(None, description="a depth is a level of the file times this")
    offset: float | Absent = Field(None, description="plus this")


class Tensor(BaseModel):
    """A raw output row of a model whose head is not recognised."""

    name: str
    datatype: str
    shape: list[int]
    data: list[object]


class ErrorDetail(BaseModel):
    """A stable word for programs, a sentence for people."""

    code: str
    message: str


class ErrorAnswer(BaseModel):
    """Every answer that is not 2xx."""

    error: ErrorDetail


class ImageAnswer(BaseModel):
    """One image of an answer: the field that the `task` names, or `error`.

    One schema, not one for each task: many generators of clients cannot read a choice of schemas.
    """

    width: int | Absent = Field(None, description="pixels of the upright image")
    height: int | Absent = None
    orientation: int | Absent = Field(None, description="EXIF, as in the file: 1 to 8")
    detections: list[Detection] | Absent = Field(None, description="best first")
    classes: list[ScoredClass] | Absent = Field(None, description="top_k, best first")
    semantic: Semantic | Absent = None
    saliency: Saliency | Absent = None
    depth: Depth | Absent = None
    tensors: list[Tensor] | Absent = Field(None, description="outputs that are not decoded")
    reason: str | Absent = Field(None, description="why there are only tensors")
    error: ErrorDetail | Absent = Field(None, description="why this image failed")


class TimingMs(BaseModel):
    """Milliseconds by stage (of the slowest image in each) and in all."""

    decode: float
    letterbox: float
    queue: float
    infer: float
    postprocess: float
    total: float


FIELDS: dict[str, str] = {
    "detect": "detections",
    "segment": "detections",
    "pose": "detections",
    "obb": "detections",
    "text": "detections",
    "classify": "classes",
    "semantic": "semantic",
    "saliency": "saliency",
    "depth": "depth",
    "tensors": "tensors",
}
"""The field of an image that holds what a task finds."""


class PredictAnswer(BaseModel):
    """Answers in the order of the images; a bad image among good ones fails only itself."""

    model: str
    version: str
    task: Literal[
        "detect",
        "segment",
        "pose",
        "obb",
        "text",
        "classify",
        "semantic",
        "saliency",
        "depth",
        "tensors",
    ] = Field(description="says which field each image has: detections, classes, semantic, ...")
    images: list[ImageAnswer]
    timing_ms: TimingMs

    @model_validator(mode="after")
    def _has_what_its_task_says(self) -> Self:
        extra = {"reason"} if self.task == "tensors" else set()
        found = {"width", "height", "orientation", FIELDS[self.task], *extra}
        for image in self.images:
            if image.model_fields_set not in ({"error"}, found):
                raise ValueError(f"{self.task} with {sorted(image.model_fields_set)}")
        return self
