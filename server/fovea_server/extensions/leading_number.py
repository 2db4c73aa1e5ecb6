"""Whole numbers in text, as C's library reads them."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\s*([+-]?)0*(\d{1,20}|(?<=0))", re.ASCII)


def leading_number(text: str) -> int | None:
    """The number that a text begins with, as C's strtol; None where it begins with none.

    What follows the digits is not looked at. Of a number of more than 20 digits the first 20 are
    told, which are out of any range already.
    """
    found = _NUMBER.match(text)
    return None if found is None else int(f"{found[1]}{found[2] or 0}")
