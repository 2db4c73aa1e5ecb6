"""Write docs/reference: all commands and all settings, from the program itself.

python -m tools.reference
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import typer
from typer._click import Context
from typer.core import TyperGroup

from fovea_server.cli.command import Command
from fovea_server.cli.main import COMMANDS, app
from fovea_server.cli.serve import HELP_ALL
from fovea_server.settings import Settings, flag

FOLDER = Path(__file__).parents[1] / "docs" / "reference"


def pages() -> dict[Path, str]:
    """Return the text of each page, by its file."""
    return {
        FOLDER / "commands.md": "\n".join(_commands()) + "\n",
        FOLDER / "settings.md": "\n".join(_settings()) + "\n",
    }


def _open_program() -> tuple[TyperGroup, Context]:
    program = typer.main.get_command(app)
    assert isinstance(program, TyperGroup)
    return program, Context(program, info_name="fovea")


def _commands() -> Iterator[str]:
    program, root = _open_program()
    yield "# Commands\n"
    yield "Written by `python -m tools.reference`. `fovea COMMAND --help` prints the same."
    yield "[The command line](exit-codes.md) has the exit codes, `--json` and completion."
    for panel, names in COMMANDS.items():
        yield f"\n## {panel}"
        for name in sorted(names):
            yield from _command(program, name, root)


def _command(parent: TyperGroup, name: str, above: Context) -> Iterator[str]:
    command = parent.get_command(above, name)
    assert command is not None, name
    # Defaults that depend on this machine are not resolved.
    context = Context(command, info_name=name, parent=above, resilient_parsing=True)
    yield f"\n### {context.command_path}"
    text, *rest = (command.help or "").replace("\b\n", "").split("\n\n")
    examples = [part.removeprefix("Example: ") for part in rest if part.startswith("Example: ")]
    for part in (text, *(part for part in rest if not part.startswith("Example: "))):
        yield f"\n{_escape(' '.join(part.split()))}"
    if examples:
        yield "\n```console"
        yield from (f"$ {' '.join(example.split())}" for example in examples)
        yield "```"
    if isinstance(command, Command):
        for title, rows in command.list_sections(context).items():
            yield from _table((title, ""), rows)
    if isinstance(command, TyperGroup):
        for each in command.list_commands(context):
            yield from _command(command, each, context)


def _settings() -> Iterator[str]:
    program, root = _open_program()
    serve = program.get_command(root, "serve")
    assert isinstance(serve, Command)
    context = Context(serve, info_name="serve", parent=root, resilient_parsing=True)
    context.meta[HELP_ALL] = True
    yield "# Settings of `fovea serve`\n"
    yield "Written by `python -m tools.reference`. Each setting is a flag, and a variable of the"
    yield "environment. The flag wins."
    variables = {flag(name): f"`FOVEA_{name.upper()}`" for name in Settings.model_fields}
    for title, rows in serve.list_sections(context).items():
        names = [re.findall(r"--[\w-]+", name)[:1] for name, _ in rows]
        listed = [
            (name, variables[first[0]], text)
            for first, (name, text) in zip(names, rows, strict=True)
            if first and first[0] in variables
        ]
        if listed:
            yield f"\n## {title}"
            yield from _table(("flag", "variable", "meaning"), listed)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; the first of each row is code."""
    yield f"\n| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for first, *rest in rows:
        if first != "--help":
            yield f"| {' | '.join(map(_escape, (f'`{first}`', *rest)))} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in pages().items():
        file.write_text(text)
