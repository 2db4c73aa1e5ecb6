"""Declares options that several commands of this package share."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fovea_engines.backends.registry import DEFAULT_CPU_BACKEND
from fovea_engines.commands.option_rules import is_typed
from fovea_engines.detect.heads.preprocess import PRESETS
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import InvalidOption

MODEL_PANEL = "Model and repository"
PRECISION_PANEL = "Precision"
CHECK_PANEL = "Check"
_TENSORRT_PANEL = "TensorRT"


class Backend(StrEnum):
    """Choices of `--backend`."""

    AUTO = "auto"
    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    TENSORRT_RTX = "tensorrt-rtx"

    @property
    def runtime(self) -> str:
        """Return the name of the backend that is meant."""
        return DEFAULT_CPU_BACKEND if self is Backend.AUTO else self.value


class Calibrator(StrEnum):
    """Choices of `--calibrator`."""

    PERCENTILE = "percentile"
    MINMAX = "minmax"
    ENTROPY = "entropy"


ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL.onnx", help="The exported model.", exists=True)
]
RepositoryOption = Annotated[
    Path,
    typer.Option(
        "--repository",
        metavar="DIR",
        envvar="FOVEA_MODEL_REPOSITORY",
        show_envvar=True,
        help="Folder of the models.",
        file_okay=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
ServedModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Name of the model; or the path of its folder, or a version's."
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(help="Ask this server, e.g. http://127.0.0.1:8000.", show_default="none"),
]
BackendOption = Annotated[
    Backend,
    typer.Option(
        help=f"Runtime; auto is the fastest on a CPU: {DEFAULT_CPU_BACKEND}.",
        rich_help_panel=MODEL_PANEL,
    ),
]
SizeOption = Annotated[
    str | None,
    typer.Option(
        metavar="HxW",
        help="Input size in pixels.",
        show_default="the model's own",
        rich_help_panel=MODEL_PANEL,
    ),
]
HeadOption = Annotated[
    str | None,
    typer.Option(
        "--head",
        "--family",
        metavar="FAMILY",
        help="Head family, where it is not recognised.",
        show_default="recognised",
        rich_help_panel=MODEL_PANEL,
    ),
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR|FILE.json",
        help="Images as the camera takes them, a hundred or more; INT8 ranges are measured on "
        "them. Or the calibration.json of another build.",
        exists=True,
        rich_help_panel=PRECISION_PANEL,
    ),
]
CalibratorOption = Annotated[
    Calibrator,
    typer.Option(
        help="How a range is chosen: all but the rarest values, all, or by entropy.",
        rich_help_panel=PRECISION_PANEL,
    ),
]
PreprocessOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.json",
        help=f"How the model was trained to see: {', '.join(PRESETS)}, or a file with fields of "
        "the card's preprocess.",
        show_default="that of its family",
        rich_help_panel=MODEL_PANEL,
    ),
]
ProfileOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MIN,OPT,MAX",
        help="Batches that the engine takes, and the one it is fastest with. May be repeated.",
        show_default="1,N,N of --max-batch",
        rich_help_panel=_TENSORRT_PANEL,
    ),
]
WorkspaceOption = Annotated[
    int | None,
    typer.Option(
        metavar="MIB",
        min=1,
        help="Most GPU memory that a layer may use besides its tensors.",
        show_default="all",
        rich_help_panel=_TENSORRT_PANEL,
    ),
]
LevelOption = Annotated[
    int,
    typer.Option(
        "--builder-level",
        metavar="0-5",
        min=0,
        max=5,
        help="How long kernels are looked for: more builds slower and runs faster.",
        rich_help_panel=_TENSORRT_PANEL,
    ),
]
CapabilityOption = Annotated[
    str | None,
    typer.Option(
        "--compute-capability",
        metavar="80,89,...",
        help="GPUs to build for, without having them (--backend tensorrt-rtx): 80 A100, 86 A10 "
        "and RTX 30, 89 L4 and RTX 40, 120 RTX 50.",
        show_default="the GPU that is here",
        rich_help_panel=_TENSORRT_PANEL,
    ),
]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="LIB.so",
        exists=True,
        dir_okay=False,
        help="Library of TensorRT plugins that the model needs. May be repeated.",
        rich_help_panel=_TENSORRT_PANEL,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def find_models(context: typer.Context, repository: Path, *models: str) -> list[Path]:
    """Return the paths of models that are typed as names in the repository, or as paths.

    Raises:
        NotFound: one is neither.
        InvalidOption: all are paths, and --repository is typed as well.
    """
    paths = [ModelRepository(repository).path_of(model) for model in models]
    if is_typed(context, "repository") and all(path.parent != repository for path in paths):
        raise InvalidOption(
            f"{models[0]} is a path, so --repository has no effect: leave it out, or give a name"
        )
    return paths


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Parse (height, width), such as "640x480" or "640"; InvalidOption if it is no size."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text.strip().lower())
    if match is None:
        raise InvalidOption(f"size is {text!r}; write HEIGHTxWIDTH, e.g. 640x640")
    return int(match[1]), int(match[2] or match[1])
