"""Searches for the blocks of a model that should stay float in an INT8 graph."""

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

# Smallest and largest number of blocks. With few large blocks, one sensitive layer would keep many
# layers in float. With many blocks, the search would take too long.
_FEWEST, _MAX = 8, 32
# Limit of the agreement with all blocks in INT8. Below this limit, keeping a single block in float
# may not improve the agreement measurably, even if the block is sensitive.
_SPOILT = 0.1

Quality = Callable[[Iterable[str]], float]
"""Function that takes the layers to keep in float, and returns the INT8 graph's quality."""


def int8_graph(
    graph: onnx.ModelProto, ranges: Ranges, encoding: Encoding, keep_float: Collection[str]
) -> onnx.ModelProto:
    """Convert a model to INT8.

    Layers that are not quantised compute in FP32, or in FP16 if the encoding is `SIGNED`.
    """
    quantised = quantise(graph, ranges, encoding, keep_float)
    return to_half(quantised) if encoding is Encoding.SIGNED else quantised


def blocks(layers: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Group the layers of a model into blocks by their names.

    A layer's name is a path, e.g. "/model.4/cv1/conv/Conv". The beginnings of the paths form the
    blocks, e.g. "model.4". Their length is the smallest one that gives 8 to 32 blocks. If no length
    does, or the names are not paths (e.g. "Conv_44"), up to 32 blocks of consecutive layers are
    formed.

    Returns:
        Name of each block -> names of its layers, in the order of the model.
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
    """Return the names of the layers that match the patterns, in the order of `layers`.

    A pattern is the name of a block, or a pattern of layer names with `*` and `?`.

    Raises:
        InvalidOption: a pattern matches no layer.
    """
    groups = blocks(layers)
    chosen: set[str] = set()
    for pattern in patterns:
        found = groups.get(pattern) or [name for name in layers if fnmatchcase(name, pattern)]
        if not found:
            raise InvalidOption(
                f"--exclude-nodes {pattern!r} matches no INT8 layer: give one of the blocks "
                f"{', '.join(groups)}"
            )
        chosen.update(found)
    return tuple(name for name in layers if name in chosen)


def rank(
    groups: Mapping[str, Sequence[str]], base: float, quality: Quality, progress: Progress
) -> list[Sensitivity]:
    """Measure the gain of keeping each block in float, and return the blocks sorted by their gain.

    The block with the largest gain comes first.

    If the agreement is very low, and no single block improves it because several blocks are
    sensitive, the agreement with only one block in INT8 is measured instead, for each block.

    Args:
        groups: name of each block -> names of its layers.
        base: agreement with all blocks in INT8.
        quality: function that measures the agreement. It is called once or twice per block.
        progress: object that receives the number of measured blocks.
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
    """Choose blocks to keep in float, one after another, until the quality reaches a budget.

    The block with the largest gain is chosen first.

    Args:
        budget: required quality.
        base: quality with all blocks in INT8.
        ranking: blocks, the block with the largest gain first.
        quality: function that measures the quality.

    Returns:
        The blocks to keep in float, and the quality with these blocks in float. If no number of
        blocks reaches the budget, the result with the highest quality.
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
    """The result of a search for blocks to keep in float.

    Attributes:
        base: score before the search.
        ranking: all blocks, the block with the largest gain first.
        kept: blocks to keep in float.
        reached: score with `kept` in float.
    """

    base: Score
    ranking: tuple[Sensitivity, ...]
    kept: tuple[Sensitivity, ...]
    reached: Score


class Int8Candidates:
    """Creates and measures INT8 graphs of one model in one encoding.

    The graphs differ in the layers that stay float.
    """

    def __init__(
        self, judge: Judge, graph: onnx.ModelProto, ranges: Ranges, encoding: Encoding
    ) -> None:
        self._judge, self._graph = judge, graph
        self._ranges, self._encoding = ranges, encoding

    def score(self, keep_float: Iterable[str]) -> Score:
        """Return the score of the INT8 graph in which the named layers stay float."""
        return self._judge.score(self._int8(keep_float), self._encoding)

    def search(
        self, layers: Sequence[str], kept: Sequence[str], base: Score, progress: Progress
    ) -> SensitivitySearch:
        """Search for blocks of `layers` to keep in float, in addition to the layers in `kept`.

        `base` is the score with only `kept` in float.
        """
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
