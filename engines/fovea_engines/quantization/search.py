"""Searches for the blocks of a model that should stay float."""

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

# Smallest and largest number of blocks. In few large blocks, one sensitive layer keeps many layers
# in float. Many blocks make the search long.
_FEWEST, _MAX = 8, 32
# Agreement below which one block more or less makes no visible difference.
_SPOILT = 0.1

Quality = Callable[[Iterable[str]], float]
"""Function that returns the agreement (0 to 1) of the model in INT8 with layers in float."""


def int8_graph(
    graph: onnx.ModelProto, ranges: Ranges, encoding: Encoding, keep_float: Collection[str]
) -> onnx.ModelProto:
    """Convert a model to INT8. The other layers are FP32, or FP16 with `SIGNED`."""
    quantised = quantise(graph, ranges, encoding, keep_float)
    return to_half(quantised) if encoding is Encoding.SIGNED else quantised


def blocks(layers: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Group layers, in the order of the model, by the part of the model that their names indicate.

    "/model.4/cv1/conv/Conv" belongs to "model.4": names are cut at the first depth with 8 to 32
    groups. Names without parts ("Conv_44") are grouped by position.
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
    """Return the layers that match names of blocks, or patterns with `*` and `?`.

    Raises:
        InvalidOption: a pattern matches no layer.
    """
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
    """Measure each block alone in float, and rank the blocks by their gain, largest first.

    If no single block improves the agreement, because another block spoils it by itself, each block
    is measured alone in INT8 instead.

    Args:
        groups: name of a block -> its layers.
        base: agreement without float blocks.
        quality: measures the agreement; called once or twice per block.
        progress: receives the number of measured blocks.
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
    """Keep more blocks in float, largest gain first, until the agreement reaches a budget.

    Args:
        budget: required agreement.
        base: agreement with every block in INT8.
        ranking: blocks by their gain, largest first.
        quality: measures the agreement.

    Returns:
        The blocks to keep in float, and their agreement. If blocks with a gain cannot reach the
        budget, the best result.
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

    Attributes:
        base: score before the search.
        ranking: all blocks, measured alone, largest gain first.
        kept: blocks to keep in float.
        reached: score with `kept` in float.
    """

    base: Score
    ranking: tuple[Sensitivity, ...]
    kept: tuple[Sensitivity, ...]
    reached: Score


class Int8Candidates:
    """INT8 graphs of one model in one encoding, which differ in the layers that stay float."""

    def __init__(
        self, judge: Judge, graph: onnx.ModelProto, ranges: Ranges, encoding: Encoding
    ) -> None:
        self._judge, self._graph = judge, graph
        self._ranges, self._encoding = ranges, encoding

    def score(self, keep_float: Iterable[str]) -> Score:
        """Measure the graph with the named layers in float."""
        return self._judge.score(self._int8(keep_float), self._encoding)

    def search(
        self, layers: Sequence[str], kept: Sequence[str], base: Score, progress: Progress
    ) -> SensitivitySearch:
        """Search for blocks of `layers` to keep in float, in addition to the layers in `kept`."""
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
