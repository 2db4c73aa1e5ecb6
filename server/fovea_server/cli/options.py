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
        metavar="-- FLAGS", help="Flags of `fovea serve`, for the server that this command starts."
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
    typed = (is_typed(context, name) for name in ("repository", "serve_flags", "over"))
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
    Path, typer.Argument(metavar="MODEL.onnx", help="The exported model.", exists=True)
]
RepositoryOption = Annotated[
    Path,
    model_option(
        "--repository",
        metavar="DIR",
        envvar="FOVEA_MODEL_REPOSITORY",
        show_envvar=True,
        help="Folder of the models.",
        file_okay=False,
        callback=_local,
    ),
]
ServedModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Name of the model, or path of its folder or of a version.",
        autocompletion=model_names,
    ),
]
UrlOption = Annotated[
    str | None,
    model_option(
        metavar="URL",
        envvar="FOVEA_URL",
        show_envvar=True,
        help="Use this server, for example http://127.0.0.1:8000. FOVEA_API_KEY is its key.",
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
        help="Run the model's head if it is a Python file. Trust its author first.",
    ),
]
VersionOption = Annotated[
    int | None,
    model_option(metavar="N", min=1, help="Version of the model.", show_default="the current one"),
]
EveryOption = Annotated[
    int, typer.Option(metavar="N", min=1, help="Use every N-th frame of a video.")
]
BackendOption = Annotated[Backend, model_option(help=f"Runtime; auto is {DEFAULT_CPU_BACKEND}.")]
SizeOption = Annotated[
    str | None,
    model_option(metavar="HxW", help="Input size in pixels.", show_default="the model's own"),
]
HeadOption = Annotated[
    str | None,
    model_option(
        "--head",
        "--family",
        metavar="FAMILY",
        help="Head family, if it is not recognised; or FILE.py, a head of your own (`fovea init "
        "--head` writes a template). The build runs its code.",
        show_default="recognised",
        autocompletion=lambda: list(FAMILIES),
    ),
]
ForceHeadOption = Annotated[
    bool,
    model_option(
        "--force-head",
        help=(
            "Build with --head even if the metadata or the output values contradict it. The card "
            "records the contradiction."
        ),
    ),
]
CalibrationOption = Annotated[
    Path | None,
    precision_option(
        metavar="DIR|FILE.json",
        help="Images to measure INT8 ranges on, a hundred or more from your camera; or "
        "calibration.json of another build.",
        exists=True,
    ),
]
CalibratorOption = Annotated[
    Method,
    precision_option(
        help=(
            "How to choose the INT8 range of each tensor: percentile drops outliers, minmax keeps "
            "all values, entropy minimises the loss of information, mse the mean squared error."
        )
    ),
]
PreprocessOption = Annotated[
    str | None,
    model_option(
        metavar="NAME|FILE.json",
        help=(
            f"How images were preprocessed in training: a preset ({', '.join(PRESETS)}); one "
            f"change to the default of the model's family ({', '.join(list(VARIANTS)[1:])}); or a "
            "JSON file with the fields of `preprocess` in the card."
        ),
        show_default="family",
        autocompletion=lambda: list(NAMES),
    ),
]
ProfileOption = Annotated[
    list[str] | None,
    _tensorrt_option(
        metavar="MIN,OPT,MAX",
        help="Smallest batch size, the size to optimise for, and the largest. May be repeated.",
        show_default="1,1,1 and 2,N,N of --max-batch",
    ),
]
WorkspaceOption = Annotated[
    int | None,
    _tensorrt_option(
        metavar="MIB",
        min=1,
        help="GPU memory that a layer may use in addition to its tensors, MiB.",
        show_default="all",
    ),
]
LabelsOption = Annotated[
    str | None,
    model_option(
        metavar="SET|FILE",
        help="Class names: a text file with one name per line; or coco (80), coco91 (COCO's ids 0"
        " to 90) or imagenet (1000).",
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
            "Effort of the search for kernels; a higher level builds longer, and can make the "
            "engine faster."
        ),
    ),
]
CapabilityOption = Annotated[
    str | None,
    _tensorrt_option(
        "--compute-capability",
        metavar="80,89,...",
        help=(
            "GPUs to build for with --backend tensorrt-rtx; this machine need not have them. 80: "
            "A100; 86: A10, RTX 30; 89: L4, RTX 40; 120: RTX 50."
        ),
        show_default="the GPU that is here",
    ),
]
PluginOption = Annotated[
    list[Path] | None,
    _tensorrt_option(
        "--plugin",
        metavar="LIB.so",
        exists=True,
        dir_okay=False,
        help="Library of TensorRT plugins that the model needs. May be repeated.",
    ),
]
PlotOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE.svg", help="Plot the results.", dir_okay=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


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
