"""Names the file that a mistyped path may mean."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path


def similar_path(path: Path) -> str:
    """Return a hint at the file that a path which is not there may mean; empty without one."""
    there = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, there, 1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""
