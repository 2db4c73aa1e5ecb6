"""Options of `fovea build` that TensorRT alone has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fovea_engines.backends.tensorrt.capabilities import parse_capabilities
from fovea_engines.repository.options import BuilderOptions, Plugin, Profile

_PANEL = "TensorRT"
_MIB = 1 << 20

ProfileOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MIN,OPT,MAX",
        help="Batches that the engine takes, and the one it is fastest with. May be repeated.",
        show_default="1,N,N of --max-batch",
        rich_help_panel=_PANEL,
    ),
]
WorkspaceOption = Annotated[
    int | None,
    typer.Option(
        metavar="MIB",
        min=1,
        help="Most GPU memory that a layer may use besides its tensors.",
        show_default="all",
        rich_help_panel=_PANEL,
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
        rich_help_panel=_PANEL,
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
        rich_help_panel=_PANEL,
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
        rich_help_panel=_PANEL,
    ),
]


def builder_options(
    profile: Sequence[str] | None,
    max_batch: int | None,
    workspace: int | None,
    level: int,
    capability: str | None,
    plugin: Sequence[Path] | None,
) -> BuilderOptions | None:
    """What was typed; None when nothing was.

    Raises:
        InvalidOption: an option is none that can be.
        NotFound: a plugin is not there.
    """
    if not profile and not plugin and (workspace, level, capability) == (None, 3, None):
        return None
    return BuilderOptions(
        profiles=tuple(map(Profile.parse, profile or [f"1,{max_batch or 1},{max_batch or 1}"])),
        workspace=None if workspace is None else workspace * _MIB,
        level=level,
        capabilities=() if capability is None else parse_capabilities(capability),
        plugins=tuple(map(Plugin.of, plugin or ())),
    )
