"""Layers in groups that are judged, and kept in float, together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from fovea_preprocess.errors import InvalidOption

# Fewer blocks than this hide which one is to blame; more make the search long.
_FEWEST, _MOST = 8, 32


def blocks(layers: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Group layers, in the network's order, by the part of the network that their names mean.

    "/model.4/cv1/conv/Conv" belongs to "model.4": names are cut at the depth where there are at
    least 8 groups. Names without parts ("Conv_44") are grouped by their place.
    """
    paths = [re.findall(r"[^/.]+", name.split("/aten::")[0]) for name in layers]
    for depth in range(1, max(map(len, paths), default=0)):
        groups = _grouped(layers, [".".join(path[:depth]) for path in paths])
        if _FEWEST <= len(groups) <= _MOST:
            return groups
    each = -(-len(layers) // _MOST)
    starts = [layers[i - i % each] for i in range(len(layers))]
    return _grouped(layers, starts)


def _grouped(layers: Sequence[str], keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for layer, key in zip(layers, keys, strict=True):
        groups.setdefault(key, []).append(layer)
    return {key: tuple(names) for key, names in groups.items()}


def select(patterns: Iterable[str], layers: Sequence[str]) -> tuple[str, ...]:
    """Return the layers that names of blocks, or patterns with `*` and `?`, pick out.

    Raises:
        InvalidOption: a pattern picks nothing.
    """
    groups = blocks(layers)
    chosen: set[str] = set()
    for pattern in patterns:
        found = groups.get(pattern) or [name for name in layers if fnmatchcase(name, pattern)]
        if not found:
            raise InvalidOption(
                f"--keep-float {pattern!r} is no layer that INT8 would touch; the blocks are "
                f"{', '.join(groups)}"
            )
        chosen.update(found)
    return tuple(name for name in layers if name in chosen)
