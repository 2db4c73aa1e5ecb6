"""The `fovea` command."""

from __future__ import annotations

import io
import os
import signal
import sys
from threading import Thread
from typing import Annotated

import typer

from fovea_preprocess.errors import InvalidOption
from fovea_server.commands.program import Program

# \b keeps the lines as they are.
_HELP = """Turns an ONNX vision model into a tested engine, and serves it.

\b
  fovea init my-project           a project to start from
  fovea build model.onnx          compiles a model, and checks the engine
  fovea predict model image.jpg   finds objects on an image
  fovea serve                     HTTP, gRPC, and a page to try the models
"""

app = typer.Typer(
    name="fovea",
    cls=Program,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"fovea {version('fovea-serve')}")
        raise typer.Exit


@app.callback(help=_HELP)
def fovea(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Show the help where there is no command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise InvalidOption("give one of these commands")
    if context.invoked_subcommand != "serve":  # which has a log for it
        from fovea_server.commands.flags import warn_of_ignored_variables

        warn_of_ignored_variables()


def main() -> None:
    """Run the command."""
    # Names of classes may have letters that the terminal's encoding lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # As for Ctrl-C: what was begun is cleaned up. `serve` has its own way to stop.
    for sent in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(sent) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(sent, lambda number, frame: sys.exit(128 + number))
    app(prog_name="fovea")


def main_of_child() -> None:
    """Run the command as long as the process lives that has the other end of its stdin.

    That ends even where the process is killed and can stop nothing.
    """

    def follow() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=follow, name="parent", daemon=True).start()
    main()


if __name__ == "__main__":
    main()
