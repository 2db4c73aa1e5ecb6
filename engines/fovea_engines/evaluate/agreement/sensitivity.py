"""Finds the blocks of a network that lose most in INT8, by trying each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fovea_engines.progress import Progress

# Agreement below which one block more or less makes no visible difference.
_SPOILT = 0.1

Quality = Callable[[Iterable[str]], float]
"""Agreement (0 to 1) of the INT8 network in which the layers of these names stay float."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Effect of keeping one block in float.

    Attributes:
        quality: agreement with the source when only this block is float; or, where no single block
            improves anything, when only this block is INT8.
        gain: `quality` less the agreement when no block is float; or `quality` less 1.
    """

    block: str
    layers: tuple[str, ...]
    quality: float
    gain: float


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
        found = [_alone(block, groups, quality) for block in progress.each(groups, len(groups))]
    return sorted(found, key=lambda one: one.gain, reverse=True)


def _alone(block: str, groups: Mapping[str, Sequence[str]], quality: Quality) -> Sensitivity:
    others = [layer for name, layers in groups.items() if name != block for layer in layers]
    reached = quality(others)
    return Sensitivity(block, tuple(groups[block]), reached, 1 - reached)


def keep_until(
    budget: float, base: float, ranking: Sequence[Sensitivity], quality: Quality
) -> tuple[list[Sensitivity], float]:
    """Keep the worst blocks in float, one more at a time, until the agreement reaches a budget.

    The ranking has the largest gain first; `base` is the agreement with every block quantised.

    Returns:
        The blocks to keep and the agreement that they reach; the best agreement found if blocks
        with a gain cannot meet the budget.
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
