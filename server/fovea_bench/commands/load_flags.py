"""The flags that `fovea bench` and `fovea tune` share."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from fovea_preprocess.errors import InvalidOption

ServeFlags: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- FLAGS", help="Flags of `fovea serve` for the server that this command starts."
    ),
]
Plot: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE.svg", help="Draw the results.", dir_okay=False),
]


def check_plot(plot: Path | None) -> None:
    """Refuse, as InvalidOption, a file that could not be written after minutes of measuring."""
    if plot is not None and plot.suffix.lower() != ".svg":
        raise InvalidOption(f"--plot {plot} would be an SVG drawing: name a file that ends in .svg")
    if plot is not None and not os.access(plot.absolute().parent, os.W_OK):
        raise InvalidOption(f"--plot {plot} cannot be written: give a file in a folder of yours")


def parse_numbers(name: str, text: str, form: str) -> list[str]:
    """Split numbers of a form, over 0; an InvalidOption names the option."""
    numbers = [each.strip() for each in text.split(",")]
    if not all(re.fullmatch(form, each) and float(each) for each in numbers):
        raise InvalidOption(f"--{name} {text!r}; write numbers over 0, e.g. 1,4,16")
    return numbers


def parse_clients(text: str) -> list[int]:
    """Split numbers of clients, as `parse_numbers` does."""
    return [int(each) for each in parse_numbers("clients", text, r"[1-9]\d{0,4}")]
