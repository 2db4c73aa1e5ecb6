"""Which blocks of a network lose most in INT8, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fovea_engines.progress import Progress

# Agreement that is as good as none: one block more or less cannot be seen in it.
_SPOILT = 0.1

Quality = Callable[[Iterable[str]], float]
"""Agreement (0 to 1) of the INT8 network in which the layers of these names stay float."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What it brings to keep one block in float.

    Attributes:
        block: its name.
        layers: names of its layers.
        quality: agreement with the source when this block alone is float; or, where no block
            brings anything by itself, when it alone is INT8.
        gain: that, less the agreement when none is float; or what it falls short of 1.
    """

    block: str
    layers: tuple[str, ...]
    quality: float
    gain: float


def rank(
    groups: Mapping[str, Sequence[str]], base: float, quality: Quality, progress: Progress
) -> list[Sensitivity]:
    """Put one block at a time back to float.

    Where that brings nothing, because another block spoils all by itself, one block at a time is
    put into INT8 instead.

    Args:
        groups: layers by block.
        base: agreement when no block is float.
        quality: builds and judges; called once a block, or twice.
        progress: is told of every block.

    Returns:
        The blocks, the one that gains most first.
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
    """Keep the worst blocks in float, one more at a time, until the agreement is good enough.

    Args:
        budget: agreement to reach.
        base: agreement with every block quantised.
        ranking: most gain first.
        quality: as for `rank`.

    Returns:
        The blocks to keep and the agreement that was reached; the best that was seen when the
        budget cannot be met by blocks that gain something.
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
