"""The `fovea` command."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fovea_preprocess.errors import FoveaError

# Name of each command -> its module, its function there, and its class where it has its own.
_COMMANDS: dict[str, tuple[str, ...]] = {
    "serve": ("fovea_server.commands.serve", "serve", "ServeCommand"),
    "build": ("fovea_engines.cli", "build"),
    "inspect": ("fovea_engines.inspect_cli", "inspect"),
    "predict": ("fovea_server.commands.predict", "predict"),
    "eval": ("fovea_server.commands.eval", "evaluate"),
    "sensitivity": ("fovea_engines.sensitivity_cli", "sensitivity"),
    "diff": ("fovea_engines.layers.cli", "diff"),
    "doctor": ("fovea_server.commands.doctor", "doctor"),
    "health": ("fovea_server.commands.health", "health", "SwitchCommand"),
    "demo": ("fovea_server.commands.demo", "demo"),
}


class _Commands(TyperGroup):
    """Imports a command when it is looked up: a health check cannot wait for all of them."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"commands": dict.fromkeys(_COMMANDS)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None where there is none."""
        if cmd_name not in _COMMANDS:
            return None
        where, function, *classes = _COMMANDS[cmd_name]
        module = import_module(where)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        kind = getattr(module, classes[0]) if classes else None
        alone.command(cmd_name, cls=kind)(getattr(module, function))
        return typer.main.get_command(alone)


app = typer.Typer(
    name="fovea",
    cls=_Commands,
    epilog="Start with: fovea build MODEL.onnx && fovea serve",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"fovea {version('fovea-serve')}")
        raise typer.Exit


@app.callback()
def fovea(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Takes an ONNX vision model to a checked, served engine: image in, boxes out."""


def main() -> None:
    """Run the command; errors of ours are a sentence, not a traceback."""
    # As for Ctrl-C: what was begun is cleaned up. `serve` has its own way to stop.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        app()
    except FoveaError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
