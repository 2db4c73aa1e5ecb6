"""The `fovea` command."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from fovea_engines.cli import build
from fovea_engines.inspect_cli import inspect
from fovea_engines.layers.cli import diff
from fovea_engines.sensitivity_cli import sensitivity
from fovea_preprocess.errors import FoveaError
from fovea_server.commands.demo import demo
from fovea_server.commands.doctor import doctor
from fovea_server.commands.eval import evaluate
from fovea_server.commands.predict import predict
from fovea_server.commands.serve import ServeCommand, serve

app = typer.Typer(
    name="fovea",
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


app.command(cls=ServeCommand)(serve)
app.command()(build)
app.command()(inspect)
app.command()(predict)
app.command("eval")(evaluate)
app.command()(sensitivity)
app.command()(diff)
app.command()(doctor)
app.command()(demo)


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
