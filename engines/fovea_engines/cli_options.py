"""Options that several commands of this package share."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fovea_engines.backends.registry import DEFAULT_CPU_BACKEND
from fovea_engines.heads.preprocess import PRESETS
from fovea_preprocess.errors import InvalidOption


class Backend(StrEnum):
    """Choices of `--backend`."""

    AUTO = "auto"
    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    TENSORRT_RTX = "tensorrt-rtx"

    @property
    def runtime(self) -> str:
        """Name of the backend that is meant."""
        return DEFAULT_CPU_BACKEND if self is Backend.AUTO else self.value


class Calibrator(StrEnum):
    """Choices of `--calibrator`."""

    PERCENTILE = "percentile"
    MINMAX = "minmax"
    ENTROPY = "entropy"


ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The exported model.")]
BackendOption = Annotated[
    Backend,
    typer.Option(help=f"Runtime; auto is the fastest on a CPU: {DEFAULT_CPU_BACKEND}."),
]
SizeOption = Annotated[
    str | None,
    typer.Option(metavar="HxW", help="Input size in pixels.", show_default="the model's own"),
]
HeadOption = Annotated[
    str | None,
    typer.Option(
        "--head",
        "--family",
        metavar="FAMILY",
        help="Head family, where it is not recognised.",
        show_default="recognised",
    ),
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR|FILE.json",
        help="Pictures as the camera takes them, a hundred or more; INT8 ranges are measured on "
        "them. Or the calibration.json of another build.",
    ),
]
CalibratorOption = Annotated[
    Calibrator,
    typer.Option(help="How a range is chosen: all but the rarest values, all, or by entropy."),
]
PreprocessOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.json",
        help=f"How the model was trained to see: {', '.join(PRESETS)}, or a file with fields of "
        "the card's preprocess.",
        show_default="that of its family",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def parse_size(text: str | None) -> tuple[int, int] | None:
    """(height, width) as it is typed.

    Raises:
        InvalidOption: it is no size.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text.strip().lower())
    if match is None:
        raise InvalidOption(f"size is {text!r}; write HEIGHTxWIDTH, e.g. 640x640")
    return int(match[1]), int(match[2] or match[1])
