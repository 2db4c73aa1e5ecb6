"""The schemas of /v1 for the OpenAPI page.

For speed, requests are parsed (`body.py`) and answers are written (`image_json.py`) without them;
tests check both against them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from fovea_engines.detect.options import PredictOptions


class ImageSource(BaseModel):
    """An image in a JSON request: exactly one of `data` and `url`."""

    model_config = ConfigDict(extra="forbid")

    data: str | None = Field(None, description="the encoded image, base64")
    url: str | None = Field(None, description="http(s) address (needs `--allow-url`)")


# The options have one definition, which requests are also parsed by.
_TYPES = get_type_hints(PredictOptions)
_FIELDS: dict[str, Any] = {
    "images": Annotated[list[ImageSource], Field(min_length=1)],
    **{
        option.name: (_TYPES[option.name], Field(option.default, **option.metadata))
        for option in fields(PredictOptions)
    },
}
PredictRequest = create_model(
    "PredictRequest",
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


class RunLengths(BaseModel):
    """A mask as COCO's compressed run lengths, which pycocotools decodes."""

    size: Annotated[list[int], Field(description="height, width", min_length=2, max_length=2)]
    counts: str


class MaskFile(BaseModel):
    """A mask as a PNG file of the part of the image that holds it, white on the object."""

    size: Annotated[list[int], Field(description="of the image", min_length=2, max_length=2)]
    left: Annotated[int, Field(description="column of the image at which the file begins")]
    top: Annotated[int, Field(description="row of the image at which the file begins")]
    png: Annotated[str, Field(description="the file in base64")]


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
    mask: RunLengths | list[list[float]] | MaskFile | None = Field(
        None, description="of a segmenter: COCO's run lengths or polygons, or a PNG file"
    )
    keypoints: list[Keypoint] | None = Field(None, description="of a pose model")
    rotated: Rotated | None = Field(None, description="of a model of rotated boxes or of text")
    corners: list[Corner] | None = Field(
        None,
        description="of `rotated`, clockwise; between the second and the third the angle points",
        min_length=4,
        max_length=4,
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
    mask: RunLengths | list[list[float]] | None = Field(
        None, description="COCO's run lengths or polygons"
    )


class Semantic(BaseModel):
    """The classes of an image, the largest first."""

    classes: list[ClassArea]
    png: str | None = Field(
        None,
        description="with mask=png: an indexed PNG file in base64, its index the class, and 255 a "
        "class that the request leaves out; of 16 bits and 65535 with classes of 255 and over",
    )


class Saliency(BaseModel):
    """The foreground of an image."""

    share: Annotated[float, Field(description="of the image that is foreground", ge=0, le=1)]
    png: str | None = Field(None, description="a grey PNG file of 8 bits in base64")


class Depth(BaseModel):
    """The depths of an image."""

    min: float
    max: float
    unit: Literal["m"] | None = Field(description="null: the model's own scale")
    png: str | None = Field(None, description="a grey PNG file of 16 bits in base64")
    scale: float | None = Field(None, description="a depth is a level of the file times this")
    offset: float | None = Field(None, description="plus this")


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


class Error(BaseModel):
    """Every answer that is not 2xx."""

    error: ErrorDetail


class ImageAnswer(BaseModel):
    """The detections of one image, best first."""

    width: int
    height: int
    orientation: Annotated[int, Field(ge=1, le=8, description="EXIF, as found in the file")]
    detections: list[Detection]


class ClassAnswer(BaseModel):
    """The most probable classes of one image, best first."""

    width: int
    height: int
    orientation: Annotated[int, Field(ge=1, le=8)]
    classes: Annotated[list[ScoredClass], Field(description="top_k of them")]


class SemanticAnswer(BaseModel):
    """The classes of one image."""

    width: int
    height: int
    orientation: Annotated[int, Field(ge=1, le=8)]
    semantic: Semantic


class SaliencyAnswer(BaseModel):
    """The foreground of one image."""

    width: int
    height: int
    orientation: Annotated[int, Field(ge=1, le=8)]
    saliency: Saliency


class DepthAnswer(BaseModel):
    """The depths of one image."""

    width: int
    height: int
    orientation: Annotated[int, Field(ge=1, le=8)]
    depth: Depth


class TensorAnswer(BaseModel):
    """The answer for one image of a model whose head is not recognised.

    The image was letterboxed as RGB, 0 to 1, which is a guess.
    """

    width: int
    height: int
    orientation: Annotated[int, Field(ge=1, le=8)]
    reason: Annotated[str, Field(description="why there are no boxes")]
    tensors: list[Tensor]


class TimingMs(BaseModel):
    """Milliseconds by stage (of the slowest image in each) and in all."""

    decode: float
    letterbox: float
    queue: float
    infer: float
    postprocess: float
    total: float


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
    ]
    images: list[
        ImageAnswer
        | ClassAnswer
        | SemanticAnswer
        | SaliencyAnswer
        | DepthAnswer
        | TensorAnswer
        | Error
    ]
    timing_ms: TimingMs
