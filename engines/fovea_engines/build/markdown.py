"""Text and tables as Markdown that any viewer shows alike (CommonMark with GitHub's tables)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# "$" begins a formula on GitHub, "~" strikes through, "&" begins an entity.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$#!])")


def escape(text: str) -> str:
    """Text of unknown origin on one line, so that nothing in it is taken for markup."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return _SPECIAL.sub(r"\\\1", " ".join(printable.split()))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every cell is escaped."""
    lines = [_line(header), _line(["---"] * len(header)), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape, cells))} |"
