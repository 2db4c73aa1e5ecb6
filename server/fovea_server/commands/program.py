"""The `fovea` program: how its commands show their help, and how they fail."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Never

import typer
from typer.core import TyperCommand, TyperGroup

from fovea_preprocess.errors import FoveaError, InvalidOption, NotFound

if TYPE_CHECKING:
    from typer._click import Command as ClickCommand
    from typer._click import Context, HelpFormatter

# Name of each command -> its module, its function there, and its class where it has its own.
_COMMANDS: dict[str, tuple[str, ...]] = {
    "serve": ("fovea_server.commands.serve", "serve", "ServeCommand"),
    "build": ("fovea_engines.commands.build", "build"),
    "inspect": ("fovea_engines.commands.inspect", "inspect"),
    "predict": ("fovea_server.commands.predict", "predict"),
    "eval": ("fovea_server.commands.eval", "evaluate"),
    "bench": ("fovea_server.commands.bench", "bench"),
    "tune": ("fovea_server.commands.tune", "tune"),
    "sensitivity": ("fovea_engines.commands.sensitivity", "sensitivity"),
    "diff": ("fovea_engines.commands.diff", "diff"),
    "edit": ("fovea_engines.commands.edit", "edit"),
    "doctor": ("fovea_server.commands.doctor", "doctor"),
    "health": ("fovea_server.commands.health", "health", "HealthCommand"),
    "demo": ("fovea_server.commands.demo", "demo"),
}
# Options of Ultralytics and trtexec -> what Fovea has instead.
_ELSEWHERE = {
    "--imgsz": "the input size is `fovea build --size HxW`",
    "--half": "FP16 is `fovea build --precision fp16`",
    "--fp16": "FP16 is `fovea build --precision fp16`",
    "--int8": "INT8 is `fovea build --precision int8 --calibration DIR`",
    "--batch": "the largest batch is `fovea build --max-batch N`",
}


class Command(TyperCommand):
    """Shows its options in groups: plain text, so that it is the same in a pipe."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the options under the title of their panel, in the order of their declaration."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            title = getattr(param, "rich_help_panel", None)
            if record := param.get_help_record(ctx):
                usual = f"{param.param_type_name.capitalize()}s"
                sections.setdefault(title or usual, []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


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
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name, cls=getattr(module, own[0]) if own else Command)(
            getattr(module, function)
        )
        return typer.main.get_command(single)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the commands with the first lines of their docstrings, and import none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_line(*where)) for name, where in _COMMANDS.items()])

    def main(self, *args: object, **kwargs: object) -> Never:
        """Run a command, and exit."""
        run: Callable[..., int | None] = super().main
        try:
            sys.exit(run(*args, **kwargs | {"standalone_mode": False}))
        except FoveaError as error:
            _end(str(error), 2 if isinstance(error, InvalidOption | NotFound) else 1)
        except typer.TyperException as error:
            message = " ".join(_message(error).split()).rstrip(".")
            # Of pydantic, which typer reads values with.
            message = message.replace("Value error, ", "")
            context = getattr(error, "ctx", None)
            see = "" if context is None else f"; see {context.command_path} --help"
            _end(message + see, error.exit_code)


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


def _end(message: str, code: int) -> Never:
    typer.echo(f"error: {message}", err=True)
    sys.exit(code)
