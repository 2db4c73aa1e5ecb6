"""The command class of `fovea`, which formats the help of all commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from typer import Typer
from typer._click import Context, HelpFormatter
from typer.core import TyperCommand, TyperGroup

_TYPE = re.compile(r" <(.*)>$")
# Names of types in typer's help -> names of these types in Fovea's help.
_TYPES = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER", "path": "PATH", "dir": "DIR"}
# typer puts the text of a default into parentheses; this pattern finds it, to remove them.
_DEFAULT = re.compile(r"default: \((.*?)\)(?=[;\]])")


# Stands for a hyphen while lines are broken: a character of Unicode's private use area.
_HYPHEN = "\ue000"


class _Formatter(HelpFormatter):
    """Breaks lines only at spaces, so that flags and paths stay whole."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, _protect(args), prefix)

    def write_text(self, text: str) -> None:
        super().write_text(_protect(text))

    def write_dl(
        self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        super().write_dl([(name, _protect(text)) for name, text in rows], col_max, col_spacing)

    def write(self, string: str) -> None:
        super().write(string.replace(_HYPHEN, "-"))


def _protect(text: str) -> str:
    return text.replace("-", _HYPHEN)


class _Context(Context):
    formatter_class = _Formatter


class Group(TyperGroup):
    """A group of commands. Its help breaks lines only at spaces, like the help of `Command`."""

    context_class = _Context


class Command(TyperCommand):
    """A command that shows its options in groups, as plain text in terminals and pipes."""

    context_class = _Context

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """Return the arguments for the usage line; optional arguments are in brackets."""
        return [re.sub(r"[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the sections of options."""
        for title, rows in self.list_sections(ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def list_sections(self, ctx: Context) -> dict[str, list[tuple[str, str]]]:
        """Return the name and the help of each option, by the title of its panel.

        The panels are in the order of their declaration; options without a panel come last.
        """
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            title = getattr(param, "rich_help_panel", None)
            if record := param.get_help_record(ctx):
                usual = f"{param.param_type_name.capitalize()}s"
                sections.setdefault(title or usual, []).append(_format_option(record, usual))
        sections["Options"] = sections.pop("Options")
        return {title: rows for title, rows in sections.items() if rows}


def program_of(name: str, function: Callable[..., None], kind: type[Command] = Command) -> Typer:
    """Make a Typer program that has a single command of the class `kind`."""
    program = Typer(add_completion=False, rich_markup_mode=None)
    program.command(name, cls=kind)(function)
    return program


def _format_option(record: tuple[str, str], kind: str) -> tuple[str, str]:
    """Format an option for the help: with its type, and its default without parentheses."""
    name, text = record
    if kind == "Arguments":
        name = _TYPE.sub("", name).strip("{}")
    else:
        name = _TYPE.sub(lambda found: f" {_metavar(found[1])}", name)
    return name, _DEFAULT.sub(r"default: \1", text)


def _metavar(kind: str) -> str:
    return _TYPES.get(kind.removesuffix(" range"), kind)
