"""Parses whole numbers in text as C's library does."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\s*([+-]?)0*(\d{1,20}|(?<=0))", re.ASCII)


def leading_number(text: str) -> int | None:
    """Parse the number at the beginning of a text, as C's strtol; None if there is none.

    Text after the digits is ignored. Of more than 20 digits the first 20 are read, which exceed
    every range already.
    """
    found = _NUMBER.match(text)
    return None if found is None else int(f"{found[1]}{found[2] or 0}")
