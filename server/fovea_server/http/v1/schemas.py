"""The schemas of /v1 for the OpenAPI page: requests of options, results of the client's classes.

For speed, requests are parsed (`body.py`) and results are written (`answers.py`) without them;
tests check both against them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import reduce
from inspect import cleandoc
from operator import or_
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic.json_schema import SkipJsonSchema

import fovea_client
from fovea_client.answers import TASKS
from fovea_client.value import Value
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


# A name, and its text, which goes on in lines that are indented further.
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
_FORMS: dict[Any, type[Any]] = {bytes: str, Mapping[str, float]: dict[str, float]}
"""Type of a field of the client -> its type in JSON."""


def _fields(
    *kinds: type[Any],
    forms: Mapping[str, Any] | None = None,
    partly: bool = False,
    **texts: str | dict[str, Any],
) -> dict[str, Any]:
    """Return the fields of classes of the client as `create_model` takes them.

    A field may be absent if it has a default, if not all of the classes have it, or `partly`.
    `texts` are descriptions of fields, or all arguments of their `Field`; `forms` are their types,
    where JSON has others than `_form` finds.
    """
    made: dict[str, Any] = {}
    for kind in kinds:
        types, documented = get_type_hints(kind), _documented(kind)
        for field in fields(kind):
            text = texts.get(field.name, documented.get(field.name, {}))
            about = {"description": text} if isinstance(text, str) else text
            form = (forms or {}).get(field.name) or _form(types[field.name])
            always = all(field.name in other.__match_args__ for other in kinds) and not partly
            if always and field.default is MISSING:
                made[field.name] = form, Field(**about)
            else:
                made[field.name] = form | Absent, Field(None, **about)
    return made


def _documented(kind: type[Any]) -> dict[str, str]:
    """Return what the docstring of the result of an image says of its fields."""
    if not issubclass(kind, Value):
        return {}
    attributes = cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    return {
        name: " ".join(text.split()).rstrip(".") for name, text in _ATTRIBUTE.findall(attributes)
    }


def _form(kind: type[Any]) -> type[Any]:
    """Return the type in JSON of a type of the client; of an optional one, without None."""
    if kind in _FORMS:
        return _FORMS[kind]
    if is_dataclass(kind):
        return schema_of(kind)
    parts = [part for part in get_args(kind) if part not in (NoneType, ...)]
    if get_origin(kind) is tuple:
        return list[_form(parts[0])]  # type: ignore[misc, return-value]
    return _form(reduce(or_, parts)) if parts else kind


def schema_of(
    kind: type[Any],
    name: str = "",
    forms: Mapping[str, Any] | None = None,
    **texts: str | dict[str, Any],
) -> type[BaseModel]:
    """Make the schema of a class of the client, by whose docstring it is described.

    `_form` makes one of every class that a field has; the calls below add descriptions.
    """
    given = _fields(kind, forms=forms, partly=False, **texts)
    made = create_model(name or kind.__name__, __doc__=kind.__doc__, **given)
    _FORMS[kind] = made
    return made


_MASKS = fovea_client.RunLengths, fovea_client.Outlines, fovea_client.MaskFile
_FORMS[reduce(or_, _MASKS)] = create_model(
    "Mask",
    __doc__="A mask as the option `mask` asks for it: run lengths, polygons, or a PNG file.",
    **_fields(
        *_MASKS,
        size={"description": "height, width", "min_length": 2, "max_length": 2},
        counts="COCO's compressed run lengths",
        polygons="x, y, x, y, ... in pixels",
        left="column of the image at which `png` begins",
        top="row of the image at which `png` begins",
        png="the file in base64",
    ),
)
_CORNER = schema_of(fovea_client.Corner)
ErrorDetail = schema_of(fovea_client.ImageError, "ErrorDetail")
schema_of(
    fovea_client.Detection,
    forms={
        "corners": Annotated[list[_CORNER], Field(min_length=4, max_length=4)],  # type: ignore[valid-type]
        "track_id": int | None,
    },
    mask="of a segmenter",
    keypoints="of a pose model",
    rotated="of a model of rotated boxes or of text",
    corners="of `rotated`, clockwise; between the second and the third the angle points",
    track_id="with track: null until the tracker is sure",
    attributes="of a pipeline, like the three below: what other models say of a crop",
    classes="best first",
    error="why a stage of the pipeline failed for this object",
)
_SHARE = {"ge": 0, "le": 1}
schema_of(
    fovea_client.ClassArea,
    pixels="number of its pixels",
    share={"description": "of all pixels", **_SHARE},
    mask="run lengths or polygons",
)
schema_of(
    fovea_client.Semantic,
    png="with mask=png: an indexed PNG file in base64, its index the class, and 255 a "
    "class that the request leaves out; of 16 bits and 65535 with classes of 255 and over",
)
schema_of(
    fovea_client.Saliency,
    share={"description": "of the image that is foreground", **_SHARE},
    png="a grey PNG file of 8 bits in base64",
)
schema_of(
    fovea_client.Depth,
    forms={"unit": Literal["m"] | None},
    unit="null: the model's own scale",
    png="a grey PNG file of 16 bits in base64",
    scale="a depth is a level of the file times this",
    offset="plus this",
)
schema_of(fovea_client.NewPicture, png="a PNG file of 8 bits in base64, RGB or grey")
_FORMS[fovea_client.Tensor] = create_model(
    "Tensor",
    __doc__=fovea_client.Tensor.__doc__,
    name=str,
    datatype=str,
    shape=list[int],
    data=list[object],
)
ErrorAnswer = create_model(
    "ErrorAnswer", __doc__="Every answer that is not 2xx.", error=(ErrorDetail, ...)
)

# One schema, not one for each task: many generators of clients cannot read a choice of schemas.
_IMAGE = _fields(
    fovea_client.ImageResult,
    partly=True,
    width="pixels of the upright image",
    orientation="EXIF, as in the file: 1 to 8",
    detections="best first",
    classes="top_k, best first",
    tensors="outputs that are not decoded",
)
_IMAGE["tensors"] = _IMAGE.pop("tensors")  # last, beside the reason
_IMAGE["reason"] = str | Absent, Field(None, description="why there are only tensors")
_IMAGE["error"] = ErrorDetail | Absent, Field(None, description="why this image failed")
ImageAnswer = create_model(
    "ImageAnswer",
    __doc__="One image of an answer: the field that the `task` names, or `error`.",
    **_IMAGE,
)
_FORMS[fovea_client.ImageResult | fovea_client.ImageError] = ImageAnswer
Timing = schema_of(fovea_client.Timing, "TimingMs")


_PREDICTION = _fields(
    fovea_client.Prediction,
    forms={"task": Literal[tuple(TASKS)]},
    task="says which field each image has: detections, classes, semantic, ...",
)


class PredictAnswer(create_model("PredictAnswer", **_PREDICTION)):  # type: ignore[misc]
    """Answers in the order of the images; a bad image among good ones fails only itself."""

    @model_validator(mode="after")
    def _has_what_its_task_says(self) -> Self:
        extra = {"reason"} if self.task == "tensors" else set()
        expected = {"width", "height", "orientation", TASKS[self.task], *extra}
        for image in self.images:
            if image.model_fields_set not in ({"error"}, expected):
                raise ValueError(f"{self.task} with {sorted(image.model_fields_set)}")
        return self
