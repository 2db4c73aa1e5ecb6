"""The `fovea` program: how its commands show their help, and how they fail."""

from __future__ import annotations

import ast
import errno
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import typer
from typer.core import TyperGroup

from fovea_preprocess.entry_points import Group, entry_points, load
from fovea_preprocess.errors import FoveaError, InvalidOption, NotFound
from fovea_server.commands.command import program_of

if TYPE_CHECKING:
    from typer._click import Command as ClickCommand
    from typer._click import Context, HelpFormatter
    from typer._click.shell_completion import CompletionItem

# Panel of the help -> name of each command -> its function, or the program that it makes.
_PANELS: dict[str, dict[str, str]] = {
    "First steps": {},
    "Models": {
        "build": "fovea_engines.commands.build:build",
    },
    "Serving": {
        "serve": "fovea_server.commands.serve:program",
        "health": "fovea_server.commands.health:program",
    },
    "Images": {},
}
_CORE = {name: where for panel in _PANELS.values() for name, where in panel.items()}
_OTHER_GPU = re.compile(r"'--backend': '(cuda|gpu|trt)' is not one of")
_ABSENT = re.compile(r"'([^']*)' does not exist$")
# Options of Ultralytics and trtexec -> what Fovea has instead.
_ELSEWHERE = {
    "--imgsz": "the input size is `fovea build --size HxW`",
    "--half": "FP16 is `fovea build --precision fp16`",
    "--fp16": "FP16 is `fovea build --precision fp16`",
    "--int8": "INT8 is `fovea build --precision int8 --calibration DIR`",
    "--device": "a GPU is `--backend tensorrt` of `fovea build`",
    "--source": "images are arguments: `fovea predict MODEL IMAGE...`",
    "--weights": "the model is an argument: `fovea build MODEL.onnx`",
    "--confidence": "the lowest score is --conf",
    "--threshold": "the lowest score is --conf",
    "--iou-thres": "the overlap is --iou",
    "--batch": "the largest batch is `fovea build --max-batch N`",
}


class Program(TyperGroup):
    """Imports a command when it is used, and ends a wrong one with one line on stderr.

    A health check that runs every ten seconds cannot wait for the imports of all commands.
    Exit codes: 2 where what was typed is wrong or names what is not there, 1 where it failed.
    """

    def list_commands(self, ctx: Context) -> list[str]:
        """List the names of all commands; typer suggests from them, too."""
        names = (name for panel in _panels().values() for name in panel)
        self.commands: Any = dict.fromkeys(names)
        return list(self.commands)

    def get_command(self, ctx: Context, cmd_name: str) -> ClickCommand | None:
        """Import a command; None where there is none of that name.

        Raises:
            Unavailable: the package that adds it cannot be imported.
        """
        if (where := _CORE.get(cmd_name)) is not None:
            module, _, attribute = where.partition(":")
            return _command(cmd_name, getattr(import_module(module), attribute))
        # Finding the others takes longer than a health check that runs every ten seconds may.
        if cmd_name not in self.list_commands(ctx):
            return None
        return _command(cmd_name, load(Group.COMMANDS, cmd_name))

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the commands with the first lines of their docstrings, and import none."""
        width = max(map(len, self.list_commands(ctx)))
        for panel, commands in _panels().items():
            rows = [(name.ljust(width), _first_line(name, at)) for name, at in commands.items()]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, and import none; or an option."""
        from typer._click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=_first_line(name, where))
            for panel in _panels().values()
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
            # Texts of Triton end so.
            _end(str(error).rstrip(";\n"), 2 if isinstance(error, InvalidOption | NotFound) else 1)
        except typer.TyperException as error:
            message = " ".join(_message(error).split()).rstrip(".")
            # Of pydantic, which typer reads values with.
            message = re.sub(r"Value error, |, unable to parse .*", "", message)
            message = message.replace("Input should", "it must") + _advice(message)
            context = getattr(error, "ctx", None)
            see = "" if context is None else f"; see {context.command_path} --help"
            _end(message + see, error.exit_code)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            advice = "free some space" if full else "give another path, or mend its permissions"
            what = error.filename or "the output"
            _end(f"{what} cannot be read or written ({error.strerror or error}): {advice}", 1)


def _command(name: str, found: typer.Typer | Callable[..., None]) -> ClickCommand:
    single = found if isinstance(found, typer.Typer) else program_of(name, found)
    return typer.main.get_command(single)


def _panels() -> dict[str, dict[str, str]]:
    """Return the commands of the core, and those that packages add, as `_PANELS`."""
    panels = {title: dict(commands) for title, commands in _PANELS.items()}
    for name, point in entry_points(Group.COMMANDS).items():
        if name not in _CORE:
            panel = point.name.rpartition(".")[0] or "more"
            panels.setdefault(panel.capitalize(), {})[name] = f"{point.module}:{point.attr}"
    return panels


def _first_line(command: str, where: str) -> str:
    """Return the first line of the docstring of a command, whose function may have its name.

    The source is read, and not imported; it is empty where there is none, or none that is valid.
    """
    module, _, attribute = where.partition(":")
    try:
        spec = find_spec(module)
        source = Path(spec.origin or "").read_text("utf-8") if spec else ""
        tree = ast.parse(source)
    except (ImportError, OSError, RuntimeError, SyntaxError, ValueError):
        return ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in (attribute, command):
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


def _message(error: typer.TyperException) -> str:
    """Write the message, and of options that look like an unknown one only the most similar."""
    if meant := _ELSEWHERE.get(getattr(error, "option_name", "")):
        return f"{error.message}: {meant}"
    if close := getattr(error, "possibilities", None):
        return f"{error.message}; did you mean {close[0]}?"
    return error.format_message()


def _advice(message: str) -> str:
    """Name the backends of GPUs, or the file that a path which is not there may mean."""
    if _OTHER_GPU.search(message):
        return ": a GPU is used by tensorrt and tensorrt-rtx, and by no CUDA of ONNX Runtime"
    found = _ABSENT.search(message)
    if found is None:
        return ""
    if "://" in found[1]:
        return "; it is an address: download the file first"
    # The commands of the engines are not for a health check to import.
    from fovea_preprocess.mistakes import similar_path

    return similar_path(Path(found[1])) or ": check the path"


def _end(message: str, code: int) -> Never:
    try:
        sys.stdout.flush()
    except OSError:
        # The interpreter would try again at its exit, and end with 120 in place of the code.
        with suppress(OSError):
            sys.stdout.close()
    typer.echo(f"error: {message}", err=True)
    sys.exit(code)
