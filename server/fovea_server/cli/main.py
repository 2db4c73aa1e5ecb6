"""The `fovea` program: its commands, their help, and their errors."""

from __future__ import annotations

import ast
import errno
import io
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Never

import typer

from fovea_preprocess.errors import FoveaError, InvalidOption, NotFound
from fovea_server.cli.command import Group, program_of

if TYPE_CHECKING:
    from typer._click import Command as ClickCommand
    from typer._click import Context, HelpFormatter
    from typer._click.shell_completion import CompletionItem

COMMANDS: dict[str, dict[str, str]] = {
    "Start": {
        "demo": "fovea_server.cli.demo:demo",
        "init": "fovea_server.cli.init:init",
        "doctor": "fovea_server.cli.doctor:doctor",
    },
    "Build": {
        "build": "fovea_server.cli.build:build",
        "inspect": "fovea_server.cli.inspect:inspect",
        "edit": "fovea_server.cli.edit:edit",
    },
    "Serve": {
        "serve": "fovea_server.cli.serve:program",
        "key": "fovea_server.cli.key:program",
        "health": "fovea_server.cli.health:program",
        "ray": "fovea_server.cli.ray:program",
    },
    "Use": {
        "predict": "fovea_server.cli.predict:predict",
        "watch": "fovea_server.cli.watch:watch",
        "index": "fovea_server.cli.index:index",
    },
    "Measure": {
        "eval": "fovea_server.cli.eval:evaluate",
        "bench": "fovea_server.cli.bench:bench",
        "tune": "fovea_server.cli.tune:tune",
    },
    "Release": {
        "versions": "fovea_server.cli.versions:versions",
        "promote": "fovea_server.cli.promote:promote",
        "rollback": "fovea_server.cli.promote:rollback",
    },
    "Monitor": {
        "drift": "fovea_server.cli.drift:drift",
        "shadow": "fovea_server.cli.shadow:shadow",
        "capture": "fovea_server.cli.capture:program",
    },
    "Debug": {
        "diff": "fovea_server.cli.diff:diff",
        "sensitivity": "fovea_server.cli.sensitivity:sensitivity",
    },
}
"""Panel of `fovea --help` -> name of a command -> its function, or its Typer program.

A command is imported only when it is used. A health check that runs every ten seconds must not wait
for the imports of all commands.
"""

_TARGETS = {name: target for panel in COMMANDS.values() for name, target in panel.items()}
# Commands of version 0.1 that still work, but that the help does not list.
_FORMER = {"history": "fovea_server.cli.promote:history"}
_OTHER_GPU = re.compile(r"'--backend': '(cuda|gpu|trt)' is not one of")
_ABSENT = re.compile(r"'([^']*)' does not exist$")
# Options of Ultralytics, trtexec and Fovea 0.1 -> the options of Fovea, for error messages.
_ELSEWHERE = {
    "--imgsz": "the input size is `fovea build --size HxW`",
    "--half": "FP16 is `fovea build --precision fp16`",
    "--fp16": "FP16 is `fovea build --precision fp16`",
    "--int8": "INT8 is `fovea build --precision int8 --calibration DIR`",
    "--device": "a GPU is `--backend tensorrt` of `fovea build`",
    "--source": "images are arguments: `fovea predict MODEL IMAGE...`",
    "--weights": "the model is an argument: `fovea build MODEL.onnx`",
    "--confidence": "the score threshold is --conf",
    "--threshold": "the score threshold is --conf",
    "--iou-thres": "the IoU threshold is --iou",
    "--batch": "the largest batch is `fovea build --max-batch N`",
    "--save": "annotated images are `fovea predict --out DIR --format annotated`",
    **dict.fromkeys(
        ("--mlperf", "--over", "--quick", "--logs"), "MLPerf moved to benchmarks/mlperf.py"
    ),
}
# The mark \b keeps the line breaks of the help.
_HELP = """Turn an ONNX vision model into a tested engine, and serve it.

\b
  fovea init my-project           start a project
  fovea build model.onnx          compile a model, and check the engine
  fovea predict model image.jpg   find objects in an image
  fovea serve                     serve HTTP, gRPC and a web page
"""


class Program(Group):
    """Imports a command when it is used; reports an error as one line on stderr.

    The exit code is 2 if the command line is wrong or names a missing file, and 1 if the command
    fails.
    """

    def list_commands(self, ctx: Context) -> list[str]:
        """Return the names of all commands; typer also uses them to suggest similar names."""
        self.commands: Any = dict.fromkeys(_TARGETS)
        return list(_TARGETS)

    def get_command(self, ctx: Context, cmd_name: str) -> ClickCommand | None:
        """Import a command and return it; return None for an unknown name."""
        self.list_commands(ctx)
        if (target := (_TARGETS | _FORMER).get(cmd_name)) is None:
            return None
        module, _, attribute = target.partition(":")
        found: typer.Typer | Callable[..., None] = getattr(import_module(module), attribute)
        single = found if isinstance(found, typer.Typer) else program_of(cmd_name, found)
        return typer.main.get_command(single)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the commands with the first lines of their docstrings; import no command."""
        width = max(map(len, self.list_commands(ctx)))
        for panel, commands in COMMANDS.items():
            rows = [(name.ljust(width), _first_line(name, at)) for name, at in commands.items()]
            with formatter.section(panel):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command or an option; import no command."""
        from typer._click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=_first_line(name, where))
            for panel in COMMANDS.values()
            for name, where in panel.items()
            if name.startswith(incomplete)
        ]

    def main(self, *args: object, **kwargs: object) -> Never:
        """Run a command, and exit."""
        run: Callable[..., int | None] = super().main
        try:
            code = run(*args, **kwargs | {"standalone_mode": False})
            sys.stdout.flush()
            sys.exit(code)
        except FoveaError as error:
            # Messages with Triton's wording may end with these characters, which are removed.
            _end(str(error).rstrip(";\n"), 2 if isinstance(error, InvalidOption | NotFound) else 1)
        except typer.TyperException as error:
            message = " ".join(_message(error).split()).rstrip(".")
            # typer parses values with pydantic, whose messages contain these phrases.
            message = re.sub(r"Value error, |, unable to parse .*", "", message)
            message = message.replace("Input should", "it must") + _advice(message)
            context = getattr(error, "ctx", None)
            see = "" if context is None else f"; see {context.command_path} --help"
            _end(message + see, error.exit_code)
        except RuntimeError as error:
            if "home directory" not in str(error):  # pathlib raises a plain RuntimeError
                raise
            _end("this user has no home directory: set HOME to a folder that can be written to", 1)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            advice = "free some space" if full else "give another path, or correct its permissions"
            what = error.filename or "the output"
            _end(f"{what} cannot be read or written ({error.strerror or error}): {advice}", 1)


def _first_line(command: str, target: str) -> str:
    """Return the first line of a command's docstring, without importing the command's module.

    The function has the name after the colon in `target`, or the name of the command.
    """
    module, _, attribute = target.partition(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name in (attribute, command):
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


def _message(error: typer.TyperException) -> str:
    """Return the message of an error, with at most one suggestion of an option."""
    if meant := _ELSEWHERE.get(getattr(error, "option_name", "")):
        return f"{error.message}: {meant}"
    if close := getattr(error, "possibilities", None):
        return f"{error.message}; did you mean {close[0]}?"
    return error.format_message()


def _advice(message: str) -> str:
    """Return advice for a wrong GPU backend or for a path that does not exist; otherwise ""."""
    if _OTHER_GPU.search(message):
        return (
            ": for a GPU, choose tensorrt or tensorrt-rtx; Fovea does not use CUDA of ONNX Runtime"
        )
    found = _ABSENT.search(message)
    if found is None:
        return ""
    if "://" in found[1]:
        return "; it is a URL: download the file first"
    # Imported here, because a health check does not need it.
    from fovea_preprocess.mistakes import similar_path

    return similar_path(Path(found[1])) or ": check the path"


def _end(message: str, code: int) -> Never:
    try:
        sys.stdout.flush()
    except OSError:
        # Close stdout, because the interpreter would try to flush it again at exit, and exit with
        # 120 instead of `code`.
        with suppress(OSError):
            sys.stdout.close()
    typer.echo(f"error: {message}", err=True)
    sys.exit(code)


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
    """Show the help if no command is given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise InvalidOption("no command was given: choose one from the list above")
    if context.invoked_subcommand != "serve":  # `serve` logs these variables itself
        from fovea_server.cli.flags import warn_of_ignored_variables

        warn_of_ignored_variables()


def main() -> None:
    """Run the program."""
    # Class names may contain characters that the encoding of the terminal cannot represent.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # These signals end the program like Ctrl-C, so that temporary files are removed. `serve`
    # replaces the handlers.
    for sent in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(sent) is not signal.SIG_IGN:  # nohup sets SIG_IGN
            signal.signal(sent, lambda number, frame: sys.exit(128 + number))
    app(prog_name="fovea")


def main_of_child() -> None:
    """Run the program until the process at the other end of stdin ends.

    The program ends too when stdin is closed, even if the other process was killed.
    """

    def follow() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=follow, name="parent", daemon=True).start()
    main()


if __name__ == "__main__":
    main()
