"""What each family was trained to see, as a `PreprocessSpec`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from fovea_engines.backends.base import TensorSpec
from fovea_engines.heads.metadata import image_size, largest_stride
from fovea_preprocess.errors import InvalidOption, UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec

TRAINED: Mapping[str, Mapping[str, Any]] = {
    "yolox": {"channels": "BGR", "scale": 1.0, "anchor": "top-left"},
}
"""Where a family departs from RGB, 0 to 1, padded around the centre."""


def default_preprocess(
    family: str | None,
    inputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    size: tuple[int, int] | None = None,
) -> PreprocessSpec:
    """The preprocessing of a family, in the layout, type and size of the model's input.

    Args:
        family: name in `FAMILIES`; None is treated as the usual YOLO input, RGB 0 to 1.
        inputs: the model's inputs, of which the first takes the picture.
        metadata: the model's own key-value pairs; `imgsz` stands in for a dynamic size.
        size: (height, width) in pixels; rules over `imgsz` where the input is dynamic.

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
    trained = dict(TRAINED.get(family or "", {}))
    if image.dtype == "uint8":
        trained["scale"] = 1.0
    dtype = cast(Literal["float32", "float16", "uint8"], image.dtype)
    return PreprocessSpec(height=height, width=width, layout=layout, dtype=dtype, **trained)


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
