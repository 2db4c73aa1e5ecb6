"""The schemas of /v1 for the OpenAPI document: requests with options, and responses.

`body.py` parses requests and `to_json` writes results without these schemas, because that is
faster. A test compares real responses of every task with the schemas.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, Self, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic.json_schema import SkipJsonSchema

from fovea_engines.results.options import PredictOptions
from fovea_engines.results.registry import RESULT_OF


def _refuse_null(value: None) -> None:
    raise ValueError("the field may be absent, but must not be null")


Absent = Annotated[SkipJsonSchema[None], AfterValidator(_refuse_null)]
"""A field that may be absent and is never null."""


class ImageSource(BaseModel):
    """An image in a JSON request: exactly one of `data` and `url`."""

    model_config = ConfigDict(extra="forbid")

    data: str | Absent = Field(None, description="encoded image, as base64")
    url: str | Absent = Field(
        None, description="http or https URL of the image (the server needs `--allow-url`)"
    )


# The dataclass `PredictOptions` defines the options of this schema, because requests are parsed
# with the same dataclass.
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


class Part(BaseModel):
    """A part of a response.

    This server sends only the listed fields; later servers may add fields.
    """

    model_config = ConfigDict(
        extra="forbid", json_schema_extra=lambda schema: schema.pop("additionalProperties", None)
    )


class Box(Part):
    """Corners of a box, in pixels of the upright original image."""

    x1: float
    y1: float
    x2: float
    y2: float


class Keypoint(Part):
    """A named point in pixels of the upright original image. It may lie outside the image."""

    name: str
    x: float
    y: float
    score: float


class Rotated(Part):
    """A rotated box in pixels of the upright original image. It may extend beyond the image."""

    cx: float
    cy: float
    w: float
    h: float
    angle: float


class Corner(Part):
    """A corner of a rotated box in pixels of the upright original image."""

    x: float
    y: float


class Mask(Part):
    """A mask in the form of the option `mask`: run lengths, polygons or a PNG file."""

    size: list[int] = Field(min_length=2, max_length=2, description="height and width in pixels")
    counts: str | Absent = Field(None, description="run lengths in the compressed form of COCO")
    polygons: list[list[float]] | Absent = Field(
        None, description="polygon as x, y, x, y, ... in pixels"
    )
    left: int | Absent = Field(None, description="column of the image at which `png` begins")
    top: int | Absent = Field(None, description="row of the image at which `png` begins")
    png: str | Absent = Field(None, description="PNG file as base64")


class ScoredClass(Part):
    """A class of the whole image. The scores of all classes add up to 1."""

    class_id: int
    class_name: str
    score: float


class Attribute(Part):
    """The classes that one of several classifiers assigns to an image."""

    name: str = Field(description="name of the classifier")
    exclusive: bool = Field(
        description=(
            "true: exactly one class applies, and the scores add up to 1; false: any number of "
            "classes may apply"
        )
    )
    classes: list[ScoredClass] = Field(
        description="best first; class ids are unique across all classifiers of the model"
    )


class Character(Part):
    """One character of a text, with a score from 0 to 1."""

    character: str
    score: float


class Reading(Part):
    """The text of an image that shows one line of text."""

    text: str
    score: float = Field(description="mean score of the characters, 0 to 1; 0 without characters")
    characters: list[Character] = Field(description="characters from left to right")


class Embedding(Part):
    """An embedding of an image, for the comparison of images."""

    norm: float = Field(description="norm of the embedding before normalization")
    normalised: bool = Field(description="true if the embedding is normalized (option normalize)")
    data: str | Absent = Field(
        None,
        description="float32 numbers, little-endian, in JSON as base64; absent with vector=list",
    )
    numbers: list[float] | Absent = Field(
        None, description="the embedding as a list; only with vector=list"
    )


class ErrorDetail(Part):
    """An error: a stable code for programs, and a message for people."""

    code: str
    message: str


class ErrorAnswer(Part):
    """The body of every response with an error status."""

    error: ErrorDetail


class Detection(Part):
    """One detected object."""

    box: Box
    score: float
    class_id: int
    class_name: str
    # The field is null if the option `mask` is `none`. Generated clients treat null as absent.
    mask: Mask | SkipJsonSchema[None] = Field(None, description="mask, of segmentation models")
    keypoints: list[Keypoint] | Absent = Field(None, description="keypoints, of pose models")
    rotated: Rotated | Absent = Field(
        None, description=("rotated box, of oriented-box and text models")
    )
    corners: Annotated[list[Corner], Field(min_length=4, max_length=4)] | Absent = Field(
        None,
        description=(
            "corners of the rotated box, clockwise; the angle points to the side between the "
            "second and the third corner"
        ),
    )
    track_id: int | None = Field(
        None,
        description=("with track: id of the track; null until the tracker confirms the object"),
    )
    attributes: list[Attribute] | Absent = Field(
        None,
        description=(
            "pipelines only, like the next three fields: attributes of the crop from other models"
        ),
    )
    classes: list[ScoredClass] | Absent = Field(None, description="best first")
    text: Reading | Absent = None
    embedding: Embedding | Absent = None
    error: ErrorDetail | Absent = Field(
        None, description="error of a stage of the pipeline for this object"
    )


class ClassArea(Part):
    """One class of an image and its area."""

    class_id: int
    class_name: str
    pixels: int = Field(description="number of pixels of the class")
    share: float = Field(description="fraction of the image's pixels, 0 to 1", ge=0, le=1)
    mask: Mask | Absent = Field(None, description="mask of the class as run lengths or polygons")


class Semantic(Part):
    """The classes of an image, the largest first."""

    classes: list[ClassArea]
    png: str | Absent = Field(
        None,
        description=(
            "with mask=png: a PNG of class ids in base64, 8 bits, with 255 for excluded classes; "
            "16 bits and 65535 if there are class ids from 255 up"
        ),
    )


class Saliency(Part):
    """The foreground of an image."""

    share: float = Field(description="fraction of the image that is foreground", ge=0, le=1)
    png: str | Absent = Field(None, description="a grey PNG file of 8 bits in base64")


class Depth(Part):
    """The depth map of an image."""

    min: float = Field(description="smallest depth in the image")
    max: float = Field(description="largest depth in the image")
    unit: Literal["m"] | None = Field(
        description="unit of the depths; null if they have the model's own scale"
    )
    png: str | Absent = Field(None, description="a grey PNG file of 16 bits in base64")
    scale: float | Absent = Field(None, description="depth = gray value * scale + offset")
    offset: float | Absent = Field(None, description="depth = gray value * scale + offset")


class NewPicture(Part):
    """The output image of an image-to-image model, for example an upscaled or denoised image."""

    width: int = Field(description="width or height of the new image in pixels")
    height: int = Field(description="width or height of the new image in pixels")
    png: str | Absent = Field(None, description="a PNG file of 8 bits in base64, RGB or grey")


class Tensor(Part):
    """The raw output values of a model for one image, if the model's head is unknown."""

    name: str
    datatype: str
    shape: list[int]
    data: list[object]


class ImageAnswer(Part):
    """The result for one image: `error`, or the field that belongs to the `task`."""

    # One schema for all tasks, because many client generators cannot read a choice of schemas.
    width: int | Absent = Field(None, description="size of the upright image in pixels")
    height: int | Absent = None
    orientation: int | Absent = Field(None, description="EXIF orientation of the file, 1 to 8")
    detections: list[Detection] | Absent = Field(None, description="best first")
    classes: list[ScoredClass] | Absent = Field(
        None, description="the `top_k` best classes, best first"
    )
    semantic: Semantic | Absent = None
    saliency: Saliency | Absent = None
    depth: Depth | Absent = None
    embedding: Embedding | Absent = None
    reading: Reading | Absent = None
    picture: NewPicture | Absent = None
    attributes: list[Attribute] | Absent = None
    tensors: list[Tensor] | Absent = Field(
        None, description="raw outputs of the model, if Fovea does not decode them"
    )
    reason: str | Absent = Field(None, description="reason why the response has raw outputs only")
    error: ErrorDetail | Absent = Field(None, description="error of this image")


class TimingMs(Part):
    """Time of each stage (of the slowest image) and total time, in milliseconds."""

    decode: float
    letterbox: float
    queue: float
    infer: float
    postprocess: float
    total: float
    stages: dict[str, float] | Absent = None


class PredictAnswer(Part):
    """Results in the order of the images. The result of an invalid image is an `error`."""

    model: str
    version: str
    task: Literal[(*RESULT_OF, "tensors")] = Field(  # type: ignore[valid-type]
        description=(
            "task of the model, which determines the field of each image: detections, classes, "
            "semantic, ..."
        )
    )
    images: list[ImageAnswer]
    timing_ms: TimingMs

    @model_validator(mode="after")
    def _has_what_its_task_says(self) -> Self:
        kind = RESULT_OF.get(self.task)
        own = {"tensors", "reason"} if kind is None else {kind.field}
        expected = {"width", "height", "orientation", *own}
        for image in self.images:
            if image.model_fields_set not in ({"error"}, expected):
                raise ValueError(f"{self.task} with {sorted(image.model_fields_set)}")
        return self
