"""Which blocks of a network lose most in INT8, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fovea_engines.progress import Progress

Quality = Callable[[Iterable[str]], float]
"""Agreement (0 to 1) of the INT8 network in which the layers of these names stay float."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What it brings to keep one block in float.

    Attributes:
        block: its name.
        layers: names of its layers.
        quality: agreement with the source when this block alone is float.
        gain: that, less the agreement when none is.
    """

    block: str
    layers: tuple[str, ...]
    quality: float
    gain: float


def rank(
    groups: Mapping[str, Sequence[str]], base: float, quality: Quality, progress: Progress
) -> list[Sensitivity]:
    """Put one block at a time back to float.

    Args:
        groups: layers by block.
        base: agreement when no block is float.
        quality: builds and judges; called once a block.
        progress: is told of every block.

    Returns:
        The blocks, the one that gains most first.
    """
    found = []
    for block in progress.each(groups, len(groups)):
        reached = quality(groups[block])
        found.append(Sensitivity(block, tuple(groups[block]), reached, reached - base))
    return sorted(found, key=lambda one: one.gain, reverse=True)


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
