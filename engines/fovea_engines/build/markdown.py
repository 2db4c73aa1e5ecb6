"""Formats text and tables as portable Markdown (CommonMark with GitHub's tables)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# "$" begins a formula on GitHub, "~" strikes through, "&" begins an entity.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$#!])")


def escape(text: str) -> str:
    """Escape untrusted text so that it stays on one line and contains no markup."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return _SPECIAL.sub(r"\\\1", " ".join(printable.split()))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; every cell is escaped."""
    lines = [_line(header), _line(["---"] * len(header)), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape, cells))} |"
