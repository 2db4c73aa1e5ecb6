"""The flags that `fovea bench` and `fovea tune` share."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

import typer

from fovea_preprocess.errors import InvalidOption

ServeFlags: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- FLAGS", help="Flags of `fovea serve` for the server that this command starts."
    ),
]


def parse_numbers(name: str, text: str, form: str) -> list[str]:
    """Split numbers of a form, over 0; an InvalidOption names the option."""
    numbers = [each.strip() for each in text.split(",")]
    if not all(re.fullmatch(form, each) and float(each) for each in numbers):
        raise InvalidOption(f"--{name} {text!r}; write numbers over 0, e.g. 1,4,16")
    return numbers


def parse_clients(text: str) -> list[int]:
    """Split numbers of clients, as `parse_numbers` does."""
    return [int(each) for each in parse_numbers("clients", text, r"[1-9]\d{0,4}")]


def parse_rates(text: str) -> list[float]:
    """Split rates, as `parse_numbers` does."""
    return [float(each) for each in parse_numbers("rate", text, r"\d{1,6}(\.\d+)?")]
