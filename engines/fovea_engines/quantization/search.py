"""Searches for the blocks of a model that are worth keeping in float."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.int8 import Judge, Score, Sensitivity
from fovea_engines.progress import Progress
from fovea_engines.quantization.half import to_half
from fovea_engines.quantization.qdq import quantise
from fovea_engines.quantization.ranges import Ranges
from fovea_preprocess.errors import InvalidOption

# Fewer blocks than this hide which one is to blame; more make the search long.
_FEWEST, _MAX = 8, 32
# Agreement below which one block more or less makes no visible difference.
_SPOILT = 0.1

Quality = Callable[[Iterable[str]], float]
"""Agreement (0 to 1) of the INT8 network in which the layers of these names stay float."""


def int8_graph(
    graph: onnx.ModelProto, ranges: Ranges, encoding: Encoding, keep_float: Collection[str]
) -> onnx.ModelProto:
    """Convert a model to INT8; the rest is FP32, or FP16 with `SIGNED`."""
    quantised = quantise(graph, ranges, encoding, keep_float)
    return to_half(quantised) if encoding is Encoding.SIGNED else quantised


def blocks(layers: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Group layers, in the network's order, by the part of the network that their names mean.

    "/model.4/cv1/conv/Conv" belongs to "model.4": names are cut at the depth where there are at
    least 8 groups. Names without parts ("Conv_44") are grouped by their place.
    """
    paths = [re.findall(r"[^/.]+", name.split("/aten::")[0]) for name in layers]
    for depth in range(1, max(map(len, paths), default=0)):
        groups = _group(layers, [".".join(path[:depth]) for path in paths])
        if _FEWEST <= len(groups) <= _MAX:
            return groups
    each = -(-len(layers) // _MAX)
    starts = [layers[i - i % each] for i in range(len(layers))]
    return _group(layers, starts)


def _group(layers: Sequence[str], keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for layer, key in zip(layers, keys, strict=True):
        groups.setdefault(key, []).append(layer)
    return {key: tuple(names) for key, names in groups.items()}


def select(patterns: Iterable[str], layers: Sequence[str]) -> tuple[str, ...]:
    """Return the layers that names of blocks, or patterns with `*` and `?`, pick out."""
    groups = blocks(layers)
    chosen: set[str] = set()
    for pattern in patterns:
        found = groups.get(pattern) or [name for name in layers if fnmatchcase(name, pattern)]
        if not found:
            raise InvalidOption(
                f"--exclude-nodes {pattern!r} matches no INT8 layer; the blocks are "
                f"{', '.join(groups)}"
            )
        chosen.update(found)
    return tuple(name for name in layers if name in chosen)


def rank(
    groups: Mapping[str, Sequence[str]], base: float, quality: Quality, progress: Progress
) -> list[Sensitivity]:
    """Keep one block at a time in float, and rank the blocks by their gain, largest first.

    Where no single block improves anything, because another block spoils the result by itself, one
    block at a time is put into INT8 instead. `base` is the agreement when no block is float;
    `quality` is called once or twice per block.
    """
    found = []
    for block in progress.each(groups, len(groups)):
        reached = quality(groups[block])
        found.append(Sensitivity(block, tuple(groups[block]), reached, reached - base))
    if all(one.gain <= 0 for one in found) and base < _SPOILT:
        found = [
            _measure_alone(block, groups, quality) for block in progress.each(groups, len(groups))
        ]
    return sorted(found, key=lambda one: one.gain, reverse=True)


def _measure_alone(
    block: str, groups: Mapping[str, Sequence[str]], quality: Quality
) -> Sensitivity:
    others = [layer for name, layers in groups.items() if name != block for layer in layers]
    reached = quality(others)
    return Sensitivity(block, tuple(groups[block]), reached, 1 - reached)


def keep_until(
    budget: float, base: float, ranking: Sequence[Sensitivity], quality: Quality
) -> tuple[list[Sensitivity], float]:
    """Keep the worst blocks in float, one more at a time, until the agreement reaches a budget.

    The ranking has the largest gain first; `base` is the agreement with every block quantised.
    Returns the blocks to keep and the agreement that they reach; the best agreement found if
    blocks with a gain cannot meet the budget.
    """
    kept: list[Sensitivity] = []
    best: tuple[list[Sensitivity], float] = ([], base)
    for one in ranking:
        if best[1] >= budget or one.gain <= 0:
            break
        kept = [*kept, one]
        reached = quality([layer for block in kept for layer in block.layers])
        best = max(best, (kept, reached), key=lambda pair: pair[1])
    return best


@dataclass(frozen=True, slots=True)
class SensitivitySearch:
    """Result of the search for blocks to keep in float.

    `base` is the score before, `reached` the one with the `kept` blocks in float. `ranking` has
    every block by itself, largest gain first.
    """

    base: Score
    ranking: tuple[Sensitivity, ...]
    kept: tuple[Sensitivity, ...]
    reached: Score


class Int8Candidates:
    """INT8 networks of one model, in one encoding, that differ in the layers that stay float."""

    def __init__(
        self, judge: Judge, graph: onnx.ModelProto, ranges: Ranges, encoding: Encoding
    ) -> None:
        self._judge, self._graph = judge, graph
        self._ranges, self._encoding = ranges, encoding

    def score(self, keep_float: Iterable[str]) -> Score:
        """Measure the network with the named layers in float."""
        return self._judge.score(self._int8(keep_float), self._encoding)

    def search(
        self, layers: Sequence[str], kept: Sequence[str], base: Score, progress: Progress
    ) -> SensitivitySearch:
        """Try each block of layers in float, beside those `kept` in float, and keep the best."""
        seen = [base]

        def quality(more: Iterable[str]) -> float:
            return self._judge.agreement(self._int8([*kept, *more]), self._encoding)

        def margin(more: Iterable[str]) -> float:
            seen.append(self.score([*kept, *more]))
            return seen[-1].margin

        ranking = rank(blocks(layers), base.quality, quality, progress)
        found, reached = keep_until(0.0, base.margin, ranking, margin)
        best = next(one for one in seen if one.margin == reached)
        return SensitivitySearch(base, tuple(ranking), tuple(found), best)

    def _int8(self, keep_float: Iterable[str]) -> onnx.ModelProto:
        return int8_graph(self._graph, self._ranges, self._encoding, tuple(keep_float))
