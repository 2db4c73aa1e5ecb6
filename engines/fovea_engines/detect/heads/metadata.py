"""Parses untrusted metadata that exporters write into a model."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any


def literal(text: str) -> Any:
    """Parse a Python or JSON literal without evaluating it; return None for anything else."""
    for read in (ast.literal_eval, json.loads):
        try:
            return read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return None


def labels_from_metadata(
    metadata: Mapping[str, str], num_classes: int | None
) -> tuple[str, ...] | None:
    """Read class names by class id from `names`: a list or a dict of id to name, Python or JSON.

    PaddlePaddle's exporters have `character` instead, with a name in every line. None where they
    are missing, malformed, or not `num_classes` in number.
    """
    names = literal(metadata.get("names", "")) or metadata.get("character", "").splitlines()
    if isinstance(names, dict):
        by_id = {str(key): name for key, name in names.items()}
        names = [by_id.get(str(i)) for i in range(len(by_id))]
    if not isinstance(names, list | tuple) or not names:
        return None
    if not all(isinstance(name, str | int | float) for name in names):
        return None
    if num_classes is not None and len(names) != num_classes:
        return None
    return tuple(str(name) for name in names)


def image_size(metadata: Mapping[str, str]) -> tuple[int, int] | None:
    """Read (height, width) in pixels from `imgsz`, a number or a list of both; None if neither."""
    size = literal(metadata.get("imgsz", ""))
    sides = [size, size] if isinstance(size, int) else size
    match sides:
        case [int(height), int(width)] if height > 0 and width > 0:
            return height, width
    return None


def largest_stride(metadata: Mapping[str, str]) -> int:
    """Return the number of pixels that must divide both input sides; 32 where unstated."""
    stride = literal(metadata.get("stride", ""))
    strides = stride if isinstance(stride, list | tuple) else [stride]
    sound = [value for value in strides if isinstance(value, int | float) and 1 <= value <= 512]
    return int(max(sound)) if sound else 32
