"""What each family was trained to see, as a `PreprocessSpec`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import TypeAdapter

from fovea_engines.backends.base import TensorSpec
from fovea_engines.heads.metadata import image_size, largest_stride
from fovea_preprocess.errors import InvalidOption, NotFound, UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "yolo": {},
    "yolox": {"channels": "BGR", "scale": 1.0, "anchor": "top-left"},
    "imagenet": {"fit": "center-crop", "crop_ratio": 256 / 224, **_IMAGENET},
    "stretch": {"fit": "stretch", **_IMAGENET},
}
"""What departs from RGB, 0 to 1, padded around the centre, in common ways of training."""


def default_preprocess(
    family: str | None,
    inputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    size: tuple[int, int] | None = None,
    trained: Mapping[str, Any] | None = None,
) -> PreprocessSpec:
    """The preprocessing of a family, in the layout, type and size of the model's input.

    Args:
        family: name in `FAMILIES`; None is treated as the usual YOLO input, RGB 0 to 1.
        inputs: the model's inputs, of which the first takes the picture.
        metadata: the model's own key-value pairs; `imgsz` stands in for a dynamic size.
        size: (height, width) in pixels; rules over `imgsz` where the input is dynamic.
        trained: fields of `PreprocessSpec` that rule over the family's.

    Raises:
        InvalidOption: `size` contradicts a fixed input, or the model's stride does not divide it.
        UnsupportedModel: the input takes no colour pictures, or its size is not to be found.
    """
    image = inputs[0]
    if len(image.shape) != 4 or 3 not in image.shape[1::2]:
        raise UnsupportedModel(
            f"input {image.name} of shape {list(image.shape)} takes no colour pictures: "
            "it needs [batch, 3, height, width] or [batch, height, width, 3]"
        )
    if image.dtype not in ("float32", "float16", "uint8"):
        raise UnsupportedModel(
            f"input {image.name} is of {image.dtype}; pictures are float32, float16 or uint8"
        )
    layout: Literal["NCHW", "NHWC"] = "NCHW" if image.shape[1] == 3 else "NHWC"
    sides = image.shape[2:] if layout == "NCHW" else image.shape[1:3]
    height, width = _resolve(sides, size, metadata)
    fields = dict(PRESETS.get(family or "", {}) if trained is None else trained)
    if image.dtype == "uint8":
        fields["scale"] = 1.0
    dtype = cast(Literal["float32", "float16", "uint8"], image.dtype)
    return PreprocessSpec(height=height, width=width, layout=layout, dtype=dtype, **fields)


def read_preprocess(name: str) -> Mapping[str, Any]:
    """Fields of `PreprocessSpec` by the name of a preset, or from a JSON file.

    Raises:
        InvalidOption: it is neither; the message lists the presets or the wrong field.
        NotFound: there is no such file.
    """
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if path.suffix != ".json":
        raise InvalidOption(
            f"--preprocess {name!r} is none of {', '.join(PRESETS)}, nor a .json file"
        )
    try:
        fields = json.loads(path.read_bytes())
        # With any size: that of the model is put in later.
        TypeAdapter(PreprocessSpec).validate_python({"height": 1, "width": 1} | fields)
    except FileNotFoundError as error:
        raise NotFound(f"{path} is not there") from error
    except (ValueError, TypeError) as error:
        raise InvalidOption(f"{path} does not hold fields of a preprocessing: {error}") from error
    given = PreprocessSpec.from_json({"height": 1, "width": 1} | fields).to_json()
    return {key: given[key] for key in fields if key not in ("height", "width", "layout", "dtype")}


def _resolve(
    sides: Sequence[int], size: tuple[int, int] | None, metadata: Mapping[str, str]
) -> tuple[int, int]:
    """(height, width): the input's where fixed, else what is asked for."""
    wanted = size or image_size(metadata)
    if wanted is None:
        if -1 in sides:
            raise UnsupportedModel(
                "the input's size is dynamic and the metadata has no imgsz: say --size HEIGHTxWIDTH"
            )
        return sides[0], sides[1]
    resolved = tuple(want if side == -1 else side for side, want in zip(sides, wanted, strict=True))
    if size is not None and resolved != size:
        fixed = "x".join("any" if side == -1 else str(side) for side in sides)
        raise InvalidOption(f"size {size[0]}x{size[1]}: the model's input is fixed at {fixed}")
    stride = largest_stride(metadata)
    if -1 in sides and any(side < 1 or side % stride for side in resolved):
        raise InvalidOption(
            f"size {resolved[0]}x{resolved[1]}: both sides must be multiples of {stride}"
        )
    return resolved[0], resolved[1]
