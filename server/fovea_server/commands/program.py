"""The `fovea` program: how its commands show their help, and how they fail."""

from __future__ import annotations

import ast
import errno
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import typer
from typer.core import TyperGroup

from fovea_preprocess.errors import FoveaError, InvalidOption, NotFound
from fovea_server.commands.command import Command

if TYPE_CHECKING:
    from typer._click import Command as ClickCommand
    from typer._click import Context, HelpFormatter
    from typer._click.shell_completion import CompletionItem

# Panel of the help -> name of each command -> its module, its function there, and its class where
# it has its own, or the commands below it.
_PANELS: dict[str, dict[str, tuple[str, ...]]] = {
    "First steps": {
        "init": ("fovea_server.commands.init", "init"),
        "demo": ("fovea_server.commands.demo", "demo"),
        "doctor": ("fovea_server.commands.doctor", "doctor"),
    },
    "Models": {
        "build": ("fovea_engines.commands.build", "build"),
        "inspect": ("fovea_engines.commands.inspect", "inspect"),
        "edit": ("fovea_engines.commands.edit", "edit"),
        "diff": ("fovea_engines.commands.diff", "diff"),
        "sensitivity": ("fovea_engines.commands.sensitivity", "sensitivity"),
    },
    "Serving": {
        "serve": ("fovea_server.commands.serve", "serve", "ServeCommand"),
        "ray": ("fovea_server.commands.ray", "ray", "program"),
        "tune": ("fovea_server.commands.tune", "tune"),
        "bench": ("fovea_server.commands.bench", "bench"),
        "health": ("fovea_server.commands.health", "health", "HealthCommand"),
    },
    "Images": {
        "predict": ("fovea_server.commands.predict", "predict"),
        "eval": ("fovea_server.commands.eval", "evaluate"),
    },
}
_ABSENT = re.compile(r"'([^']*)' does not exist$")
_COMMANDS = {name: where for panel in _PANELS.values() for name, where in panel.items()}
# Options of Ultralytics and trtexec -> what Fovea has instead.
_ELSEWHERE = {
    "--imgsz": "the input size is `fovea build --size HxW`",
    "--half": "FP16 is `fovea build --precision fp16`",
    "--fp16": "FP16 is `fovea build --precision fp16`",
    "--int8": "INT8 is `fovea build --precision int8 --calibration DIR`",
    "--device": "a GPU is `--backend tensorrt` of `fovea build`",
    "--source": "images are arguments: `fovea predict MODEL IMAGE...`",
    "--weights": "the model is an argument: `fovea build MODEL.onnx`",
    "--batch": "the largest batch is `fovea build --max-batch N`",
}


class Program(TyperGroup):
    """Imports a command when it is used, and ends a wrong one with one line on stderr.

    A health check that runs every ten seconds cannot wait for the imports of all commands.
    Exit codes: 2 where what was typed is wrong or names what is not there, 1 where it failed.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"commands": dict.fromkeys(_COMMANDS)})

    def get_command(self, ctx: Context, cmd_name: str) -> ClickCommand | None:
        """Import a command; None where there is none of that name."""
        if cmd_name not in _COMMANDS:
            return None
        where, function, *own = _COMMANDS[cmd_name]
        module = import_module(where)
        kind = getattr(module, own[0]) if own else Command
        if isinstance(kind, typer.Typer):
            return typer.main.get_command(kind)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name, cls=kind)(getattr(module, function))
        return typer.main.get_command(single)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the commands with the first lines of their docstrings, and import none."""
        width = max(map(len, _COMMANDS))
        for panel, commands in _PANELS.items():
            with formatter.section(panel):
                formatter.write_dl(
                    [(name.ljust(width), _first_line(*where)) for name, where in commands.items()]
                )

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, and import none; or an option."""
        from typer._click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=_first_line(*where))
            for name, where in _COMMANDS.items()
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
            _end(str(error), 2 if isinstance(error, InvalidOption | NotFound) else 1)
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


def _first_line(module: str, function: str, *_: str) -> str:
    package, name = module.rsplit(".", 1)
    source = (files(package) / f"{name}.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    raise LookupError(f"{module} has no {function}")


def _message(error: typer.TyperException) -> str:
    """Write the message, and of options that look like an unknown one only the most similar."""
    if meant := _ELSEWHERE.get(getattr(error, "option_name", "")):
        return f"{error.message}: {meant}"
    if close := getattr(error, "possibilities", None):
        return f"{error.message}; did you mean {close[0]}?"
    return error.format_message()


def _advice(message: str) -> str:
    """Name the file that a path which is not there may mean."""
    found = _ABSENT.search(message)
    if found is None:
        return ""
    if "://" in found[1]:
        return "; it is an address: download the file first"
    # Its imports are slow, and needed for this error alone.
    from fovea_server.predict.sources import meant

    return meant(Path(found[1])) or ": check the path"


def _end(message: str, code: int) -> Never:
    try:
        sys.stdout.flush()
    except OSError:
        # The interpreter would try again at its exit, and end with 120 in place of the code.
        with suppress(OSError):
            sys.stdout.close()
    typer.echo(f"error: {message}", err=True)
    sys.exit(code)
