"""Options that several commands share, and checks for options that have no effect."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from fovea_engines.backends.registry import BACKEND_NAMES, DEFAULT_CPU_BACKEND
from fovea_engines.heads.head_file import load_head
from fovea_engines.heads.presets import NAMES, PRESETS, VARIANTS
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.repository.figures import Method
from fovea_engines.repository.labels import LABEL_SETS
from fovea_engines.repository.repository import DEFAULT_REPOSITORY, ModelRepository
from fovea_preprocess.errors import InvalidOption, NotFound

ServeFlags: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- FLAGS",
        help="Flags of `fovea serve` for the server that this command starts, e.g. -- --threads 2.",
    ),
]

model_option = partial(typer.Option, rich_help_panel="Model and repository")
precision_option = partial(typer.Option, rich_help_panel="Precision")
check_option = partial(typer.Option, rich_help_panel="Check")
_tensorrt_option = partial(typer.Option, rich_help_panel="TensorRT")
folder_option = partial(typer.Option, metavar="DIR", exists=True, file_okay=False)


def parse_numbers(name: str, text: str, form: str) -> list[str]:
    """Split a text into comma-separated positive numbers.

    Raises:
        InvalidOption: the text has another form; the message names the option `name`.
    """
    numbers = [each.strip() for each in text.split(",")]
    if not all(re.fullmatch(form, each) and float(each) for each in numbers):
        raise InvalidOption(f"--{name} is {text!r}, but must be numbers above 0, such as 1,4,16")
    return numbers


def parse_clients(text: str) -> list[int]:
    """Parse the numbers of clients in an option; see `parse_numbers`."""
    return [int(each) for each in parse_numbers("clients", text, r"[1-9]\d{0,4}")]


def parse_rates(text: str) -> list[float]:
    """Parse the request rates in an option; see `parse_numbers`."""
    return [float(each) for each in parse_numbers("rate", text, r"\d{1,6}(\.\d+)?")]


def _local(context: typer.Context, folder: Path) -> Path:
    """Reject the URL of a remote store, and return all other paths unchanged.

    With --url no repository is read, so the value is not checked. `Path` has changed the "//" of a
    URL to "/".
    """
    variables = (
        each.resolve_envvar_value(context) for each in context.command.params if each.name == "url"
    )
    if context.params.get("url") or (not is_typed(context, "repository") and any(variables)):
        return folder
    if found := re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/(?=[^/])", str(folder)):
        address = f"{found[1]}://{str(folder)[found.end() :].rpartition('@')[2]}"
        raise InvalidOption(
            f"--repository is {address}, but this command needs a local folder. Copy the models "
            f"first, for example with `aws s3 sync {address} repository`; after a build, copy "
            "them back"
        )
    return folder


def _drop_url_if_local(context: typer.Context, url: str | None) -> str | None:
    """Ignore the variable FOVEA_URL if typed options have an effect only without a server."""
    typed = (is_typed(context, name) for name in ("repository", "serve_flags"))
    return None if not is_typed(context, "url") and any(typed) else url


Needs: TypeAlias = Mapping[str, tuple[str, ...]]
"""Name of another option -> its values with which this option has an effect.

An empty tuple means any value.
"""


def model_names(context: typer.Context) -> list[str]:
    """Complete the name of a model in the repository, which an option or the environment names."""
    with suppress(NotFound, OSError):
        repository = Path(context.params.get("repository") or DEFAULT_REPOSITORY)
        return list(ModelRepository(repository).models())
    return []


if TYPE_CHECKING:
    Backend = str
else:  # typer shows these values in the help
    Backend = Literal[("auto", *BACKEND_NAMES)]

ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL.onnx", help="ONNX file of the model.", exists=True)
]
RepositoryOption = Annotated[
    Path,
    model_option(
        "--repository",
        metavar="DIR",
        envvar="FOVEA_MODEL_REPOSITORY",
        show_envvar=True,
        help="Model repository: the folder that contains the models.",
        file_okay=False,
        callback=_local,
    ),
]
ServedModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Name of the model, or path to its folder or to the folder of one of its versions.",
        autocompletion=model_names,
    ),
]
ModelFolderArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Name of the model, or path to its folder.",
        autocompletion=model_names,
    ),
]
SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        help=(
            "Image files, videos (mp4, avi, mkv, mov, webm), folders, or patterns in quotes, e.g. "
            "'data/**/*.jpg'."
        ),
    ),
]
UrlOption = Annotated[
    str | None,
    model_option(
        metavar="URL",
        envvar="FOVEA_URL",
        show_envvar=True,
        help=(
            "Use the running server at this URL, e.g. http://127.0.0.1:8000. If the server "
            "requires an API key, set it in the variable FOVEA_API_KEY."
        ),
        show_default="none",
        callback=_drop_url_if_local,
    ),
]
AllowCodeOption = Annotated[
    bool,
    model_option(
        "--allow-code",
        envvar="FOVEA_ALLOW_CODE",
        show_envvar=True,
        help=(
            "Run the Python file that decodes the outputs of this model (`fovea build --head "
            "FILE.py`). Without this option, such a model is rejected. Use it only if you trust "
            "the author of the file."
        ),
    ),
]
VersionOption = Annotated[
    int | None,
    model_option(
        metavar="N",
        min=1,
        help="Number of the model version to use.",
        show_default="the current one",
    ),
]
EveryOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="Process only every Nth frame of a video; 1 processes all frames.",
    ),
]
BackendOption = Annotated[
    Backend,
    model_option(
        help=f"Runtime of the engines that the command compares; auto means {DEFAULT_CPU_BACKEND}."
    ),
]
SizeOption = Annotated[
    str | None,
    model_option(
        metavar="HxW",
        help=(
            "Height and width of the input in pixels, e.g. 384x640, for a model with a dynamic "
            "input size."
        ),
        show_default="the model's own",
    ),
]
HeadOption = Annotated[
    str | None,
    model_option(
        "--head",
        "--family",
        metavar="FAMILY",
        help=(
            "Format of the model's outputs (head family), e.g. yolox, if Fovea does not recognise "
            "it; or a Python file FILE.py that decodes the outputs (`fovea init --head` writes a "
            "template). The command runs the code in this file."
        ),
        show_default="recognised",
        autocompletion=lambda: list(FAMILIES),
    ),
]
ForceHeadOption = Annotated[
    bool,
    model_option(
        "--force-head",
        help=(
            "Use --head even if the metadata or the output values of the model contradict it. "
            "Without this option, the build stops in this case."
        ),
    ),
]
CalibrationOption = Annotated[
    Path | None,
    precision_option(
        metavar="DIR|FILE.json",
        help=(
            "Folder with 100 or more images from your camera, without labels, to measure the "
            "value ranges for INT8; or the file calibration.json of an earlier build. INT8 "
            "requires this option."
        ),
        exists=True,
    ),
]
CalibratorOption = Annotated[
    Method,
    precision_option(
        help=(
            "Method that chooses the INT8 value range of each tensor: percentile ignores "
            "outliers, minmax includes all values, entropy minimises the loss of information, and "
            "mse minimises the mean squared error."
        )
    ),
]
PreprocessOption = Annotated[
    str | None,
    model_option(
        metavar="NAME|FILE.json",
        help=(
            f"How images were preprocessed in training: a preset ({', '.join(PRESETS)}); one "
            "change to the usual preprocessing of the head family "
            f"({', '.join(list(VARIANTS)[1:])}); or a JSON file with fields such as "
            '{"channels": "BGR", "scale": 1}. family means no change.'
        ),
        show_default="family",
        autocompletion=lambda: list(NAMES),
    ),
]
ProfileOption = Annotated[
    list[str] | None,
    _tensorrt_option(
        metavar="MIN,OPT,MAX",
        help=(
            "TensorRT profile: the smallest batch size, the batch size to optimise for, and the "
            "largest batch size, e.g. 1,4,8. May be repeated."
        ),
        show_default="1,1,1 and 2,N,N, with N from --max-batch",
    ),
]
WorkspaceOption = Annotated[
    int | None,
    _tensorrt_option(
        metavar="MIB",
        min=1,
        help="Largest GPU memory, in MiB, that a layer may use in addition to its tensors.",
        show_default="all",
    ),
]
LabelsOption = Annotated[
    str | None,
    model_option(
        metavar="SET|FILE",
        help=(
            "Class names: a text file with one name per line, or a built-in list: coco (80 names), "
            "coco91 (91 names, COCO ids 0 to 90) or imagenet (1000 names)."
        ),
        show_default="from the model",
        autocompletion=lambda: list(LABEL_SETS),
    ),
]
LevelOption = Annotated[
    int,
    _tensorrt_option(
        "--builder-level",
        metavar="0-5",
        min=0,
        max=5,
        help=(
            "Effort of TensorRT's search for fast kernels. A higher level takes longer to build, "
            "and can make the engine faster."
        ),
    ),
]
CapabilityOption = Annotated[
    str | None,
    _tensorrt_option(
        "--compute-capability",
        metavar="80,89,...",
        help=(
            "Compute capabilities of the target GPUs, separated by commas, with --backend "
            "tensorrt-rtx. The build machine needs no such GPU. 80: A100; 86: A10, RTX 30; 89: "
            "L4, RTX 40; 120: RTX 50."
        ),
        show_default="the GPU of this machine",
    ),
]
PluginOption = Annotated[
    list[Path] | None,
    _tensorrt_option(
        "--plugin",
        metavar="LIB.so",
        exists=True,
        dir_okay=False,
        help="Shared library with TensorRT plugins that the model requires. May be repeated.",
    ),
]
PlotOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.svg", help="Write a chart of the results to this SVG file.", dir_okay=False
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON document instead of text.")
]


def check_options(
    context: typer.Context,
    needs: Mapping[str, Needs] | None = None,
    clashes: Sequence[tuple[str, str]] = (),
) -> None:
    """Raise InvalidOption for typed options that would have no effect.

    Defaults and environment variables are not checked.

    Args:
        context: context of the command.
        needs: for an option, the other options without which it has no effect. The keys are names
            of parameters.
        clashes: pairs of options; at most one of a pair may be typed.
    """
    flags = {param.name: param.opts[0] for param in context.command.params}
    for name, others in (needs or {}).items():
        for other, values in others.items():
            value = context.params[other]
            if is_typed(context, name) and not (value in values if values else value):
                wanted = " or ".join(values)
                raise InvalidOption(
                    f"{flags[name]} has no effect without {flags[other]}"
                    f"{wanted and ' '}{wanted}: add it, or leave {flags[name]} out"
                )
    for one, other in clashes:
        if is_typed(context, one) and is_typed(context, other):
            raise InvalidOption(f"give {flags[one]} or {flags[other]}, not both")


def is_typed(context: typer.Context, name: str) -> bool:
    """Return whether an option was typed on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def check_plot(plot: Path | None) -> None:
    """Raise InvalidOption before the measurement if the plot could not be written after it."""
    if plot is not None and plot.suffix.lower() != ".svg":
        raise InvalidOption(f"--plot {plot} must be an SVG file: give a name that ends in .svg")
    if plot is not None and not os.access(plot.absolute().parent, os.W_OK):
        raise InvalidOption(
            f"--plot {plot} cannot be written: give a file in a folder that you can write to"
        )


def runtime(backend: Backend) -> str:
    """Return the name of the backend for a value of `--backend`.

    "auto" is the default CPU backend.
    """
    return DEFAULT_CPU_BACKEND if backend == "auto" else backend


def find_models(context: typer.Context, repository: Path, *models: str) -> list[Path]:
    """Return the paths of models; each was typed as a name in the repository or as a path."""
    paths = [ModelRepository(repository).path_of(model) for model in models]
    if is_typed(context, "repository") and all(path.parent != repository for path in paths):
        raise InvalidOption(
            f"{models[0]} is a path, so --repository has no effect: leave out --repository, or "
            "give the name of a model"
        )
    return paths


def head_name(text: str | None) -> str | None:
    """Return the head family for a value of `--head`, which is the name of a family or a file.

    A Python file is loaded with `load_head`.
    """
    return load_head(Path(text)).family if text is not None and text.endswith(".py") else text


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Parse "640x480" or "640" to (height, width); raise InvalidOption for any other text."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text.strip().lower())
    if match is None:
        raise InvalidOption(f"the size is {text!r}, but must be HEIGHTxWIDTH, such as 640x640")
    return int(match[1]), int(match[2] or match[1])
