"""Checks options of a command that have an effect only beside others, or without others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import typer

from fovea_preprocess.errors import InvalidOption

Needs: TypeAlias = Mapping[str, tuple[str, ...]]
"""Another option, and the values of it that give this one an effect; any value where none is."""


def check_options(
    context: typer.Context,
    needs: Mapping[str, Needs] | None = None,
    clashes: Sequence[tuple[str, str]] = (),
) -> None:
    """Refuse options that would be ignored.

    Only what was typed counts, not defaults or variables of the environment.

    Args:
        context: of the command.
        needs: for each option by its parameter's name, what it needs.
        clashes: pairs of options of which one at most may be given.

    Raises:
        InvalidOption: an option has no effect; the message says what it needs.
    """
    flags = {param.name: param.opts[0] for param in context.command.params}
    for name, others in (needs or {}).items():
        for other, values in others.items():
            value = context.params[other]
            if is_typed(context, name) and not (value in values if values else value):
                wanted = " or ".join(values)
                raise InvalidOption(
                    f"{flags[name]} has no effect without {flags[other]}"
                    f"{wanted and ' '}{wanted}: add it, or leave {flags[name]} out"
                )
    for one, other in clashes:
        if is_typed(context, one) and is_typed(context, other):
            raise InvalidOption(f"give {flags[one]} or {flags[other]}, not both")


def is_typed(context: typer.Context, name: str) -> bool:
    """Return True if an option is on the command line, not only in the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
