"""Returns the preprocessing of each family's training as a `PreprocessSpec`."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fovea_engines.heads.base import CROPPED, IMAGENET, YOLOX
from fovea_engines.heads.metadata import image_size, largest_stride, own_preprocess
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.heads.signature import image_layout, image_sides
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidOption, NotFound, UnsupportedModel
from fovea_preprocess.spec import Fit, PixelType, PreprocessSpec, Resample

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "yolo": {},
    "yolox": YOLOX,
    "imagenet": CROPPED,
    "stretch": {"fit": "stretch", **IMAGENET},
}
"""Name of a preset -> fields of `PreprocessSpec` that differ from the default.

The default is RGB, values of 0 to 1, and a letterbox around the centre.
"""

_UNIT: Mapping[str, Any] = {"scale": 1 / 255, "mean": (0.0,) * 3, "std": (1.0,) * 3}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "family": {},
    "0-to-1": _UNIT,
    "0-to-255": {**_UNIT, "scale": 1.0},
    "mean-std": {"channels": "RGB", "scale": 1 / 255, **IMAGENET},
    "letterboxed": {"fit": "letterbox"},
    "letterboxed-mean-std": {"fit": "letterbox", "channels": "RGB", "scale": 1 / 255, **IMAGENET},
    "stretched": {"fit": "stretch"},
}
"""Name of a variant in `--preprocess` -> fields that replace fields of the family's preprocessing.

Exporters of the same family differ in these fields.
"""

NAMES = (*PRESETS, *VARIANTS)
"""Names that `--preprocess` accepts."""

_USUAL: Final = PreprocessSpec(height=1, width=1)
_AS_THEY_ARE: Final[Mapping[str, tuple[Any, ...]]] = {
    "scale": (1.0, _USUAL.scale),
    "mean": (_USUAL.mean,),
    "std": (_USUAL.std,),
}
"""Field -> values that the user may give if the model has an integer input.

Such an input takes levels of 0 to 255. A value is accepted if it keeps the levels unchanged, or if
it is the default.
"""
VALUES = _AS_THEY_ARE.keys()
"""Fields of `PreprocessSpec` that determine the values of pixels."""

_Mean = Annotated[float, Field(ge=-255, le=255)]
_Std = Annotated[float, Field(ge=0.001, le=255)]


class _Trained(BaseModel):
    """Fields of `PreprocessSpec` that a user's file may set.

    The model's input determines all other fields, such as the size.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    fit: Fit = Field(_USUAL.fit, description="letterbox, stretch or center-crop")
    anchor: Literal["center", "top-left"] = Field(_USUAL.anchor, description="center or top-left")
    rounding: Literal["nearest", "down"] | None = Field(
        _USUAL.rounding, description="nearest, down or null"
    )
    unscale: Literal["sides", "ratio"] = Field(_USUAL.unscale, description="sides or ratio")
    pad: int = Field(_USUAL.pad, ge=0, le=255, description="a whole number from 0 to 255")
    max_scale: float | None = Field(_USUAL.max_scale, gt=0, description="a number above 0, or null")
    crop_ratio: float = Field(_USUAL.crop_ratio, ge=1, le=4, description="a number from 1 to 4")
    resample: Resample = Field(
        _USUAL.resample, description="linear, linear-float, antialias, bicubic, lanczos or area"
    )
    channels: Literal["RGB", "BGR"] = Field(_USUAL.channels, description="RGB or BGR")
    scale: float = Field(_USUAL.scale, gt=0, le=1, description="a number above 0, at most 1")
    mean: tuple[_Mean, _Mean, _Mean] = Field(
        _USUAL.mean, description="three numbers from -255 to 255"
    )
    std: tuple[_Std, _Std, _Std] = Field(_USUAL.std, description="three numbers from 0.001 to 255")


def default_preprocess(
    family: str | None,
    inputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    size: tuple[int, int] | None = None,
    trained: Mapping[str, Any] | None = None,
) -> PreprocessSpec:
    """Return the preprocessing of a family, in the layout, type and size of the model's input.

    Args:
        family: name in `FAMILIES`. None means the usual input of YOLO: RGB, values of 0 to 1.
        inputs: inputs of the model; the first one takes the image.
        metadata: metadata of the model; `imgsz` is the size if the input is dynamic.
        size: (height, width) in pixels; overrides `imgsz` if the input is dynamic.
        trained: fields of `PreprocessSpec` that override the family's fields.

    Raises:
        InvalidOption: `size` contradicts a fixed input, or is not a multiple of the model's stride;
            or `trained` changes the values of an integer input.
        UnsupportedModel: the input does not take colour images, or its size is unknown.
    """
    image = inputs[0]
    if (layout := image_layout(image)) is None:
        raise UnsupportedModel(
            f"input {image.name} of shape {list(image.shape)} does not accept colour images: "
            "export the model with [batch, 3, height, width] or [batch, height, width, 3]"
        )
    if image.dtype not in get_args(PixelType):
        raise UnsupportedModel(
            f"input {image.name} has the type {image.dtype}; an image input must be float32, "
            "float16, uint8 or int32"
        )
    height, width = _resolve(image_sides(image), size, metadata)
    usual = {**FAMILIES[family].preprocess, **own_preprocess(metadata)} if family else {}
    fields = {**usual, **(trained or {})}
    if not image.dtype.startswith("float"):
        _check_as_they_are(image, trained or {})
        fields |= {"scale": 1.0, "mean": _USUAL.mean, "std": _USUAL.std}
    dtype = cast(PixelType, image.dtype)
    return PreprocessSpec(height=height, width=width, layout=layout, dtype=dtype, **fields)


def read_preprocess(name: str) -> Mapping[str, Any]:
    """Read fields of `PreprocessSpec` from a named preset or a JSON file.

    Returns:
        For a preset, all fields, so that it replaces the preprocessing of the family. For a variant
            or a file, only the fields that it sets. If a file sets the scale but not mean and std,
            these are 0 and 1.

    Raises:
        InvalidOption: the name is unknown, or a field has an invalid value. Also if a file sets
            mean or std but not the scale: the scale defines their unit.
        NotFound: the file is missing or unreadable.
    """
    if name in PRESETS:
        return _Trained(**PRESETS[name]).model_dump()
    if name in VARIANTS:
        return VARIANTS[name]
    path = Path(name)
    if path.suffix != ".json":
        raise InvalidOption(
            f"unknown --preprocess {name!r}: give {', '.join(NAMES)}, or a .json file"
        )
    try:
        text = path.read_bytes().removeprefix(BOM_UTF8)
        fields = _Trained.model_validate_json(text).model_dump(exclude_unset=True)
    except OSError as error:
        raise NotFound(
            f"--preprocess {path} cannot be read ({error.strerror}): give a JSON file, or one of "
            f"{', '.join(NAMES)}"
        ) from error
    except ValidationError as error:
        where = error.errors(include_url=False)[0]["loc"]
        raise InvalidOption(f"--preprocess {path}: {_complaint(*where[:1])}") from error
    if "scale" in fields:
        return {**_UNIT, **fields}
    if named := [field for field in ("mean", "std") if field in fields]:
        raise InvalidOption(
            f"--preprocess {path}: the field scale is missing, which sets the unit of "
            f'{" and ".join(named)}: add "scale": 1 for pixel values from 0 to 255, or '
            "0.00392156862745098 for 0 to 1"
        )
    return fields


def check_fields(fields: object) -> None:
    """Check fields of `PreprocessSpec`.

    Raises:
        InvalidOption: a field is unknown or has an invalid value.
    """
    try:
        _Trained.model_validate(fields)
    except ValidationError as error:
        raise InvalidOption(_complaint(*error.errors(include_url=False)[0]["loc"][:1])) from error


def merge_preprocess(given: Mapping[str, Any] | None, own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Combine the fields that a user sets with the fields that the model's graph determines.

    The user's fields take precedence. Variants are an exception: they replace fields of the family,
    and do not replace the fields of the graph.
    """
    fields = given or {}
    return {**fields, **own} if fields in VARIANTS.values() else {**own, **fields}


def _complaint(field: int | str = "") -> str:
    known = _Trained.model_fields
    if not field:
        return 'it must be one JSON object of fields, such as {"channels": "BGR", "scale": 1}'
    if field not in known:
        return (
            f"unknown field {field!r}; the fields are {', '.join(known)} (the model's input sets "
            "size, layout and type)"
        )
    return f"{field} must be {known[str(field)].description}"


def _check_as_they_are(image: TensorSpec, trained: Mapping[str, Any]) -> None:
    changed = [
        field for field, fine in _AS_THEY_ARE.items() if trained.get(field, fine[0]) not in fine
    ]
    if changed:
        raise InvalidOption(
            f"input {image.name} has the type {image.dtype} and needs pixel values from 0 to 255, "
            f"so {', '.join(changed)} cannot be set: give --preprocess a JSON file without these "
            "fields, or export the model with a float32 input"
        )


def _resolve(
    sides: Sequence[int], size: tuple[int, int] | None, metadata: Mapping[str, str]
) -> tuple[int, int]:
    """Return (height, width) in pixels.

    These are the sides of the input if they are fixed, otherwise the requested sides.
    """
    wanted = size or image_size(metadata)
    if wanted is None:
        if -1 in sides:
            raise UnsupportedModel(
                "the input's size is dynamic, and the metadata has no imgsz: give --size "
                "HEIGHTxWIDTH"
            )
        return sides[0], sides[1]
    resolved = tuple(want if side == -1 else side for side, want in zip(sides, wanted, strict=True))
    if size is not None and resolved != size:
        fixed = "x".join("any" if side == -1 else str(side) for side in sides)
        wished = f"{size[0]}x{size[1]}"
        raise InvalidOption(
            f"size {wished} is impossible, because the model's input is fixed at {fixed}: export "
            "the model with the size that you need"
        )
    stride = largest_stride(metadata)
    chosen = [side for side, own in zip(resolved, sides, strict=True) if own == -1]
    if any(side < 1 or side % stride for side in chosen):
        raise InvalidOption(
            f"size {resolved[0]}x{resolved[1]}: both sides must be multiples of {stride}"
        )
    return resolved[0], resolved[1]
