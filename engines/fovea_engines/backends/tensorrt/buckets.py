"""Chooses the batch sizes that an engine is run at; others are padded up to one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fovea_engines.backends.tensorrt.tensors import Tensor
from fovea_engines.repository.options import Profile
from fovea_preprocess.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class Bucket:
    """A batch size, and the index of the profile that suits it best."""

    rows: int
    profile: int


def read_profiles(engine: Any, inputs: Sequence[Tensor]) -> dict[int, Profile]:
    """Return the optimization profiles of an `ICudaEngine` that take these inputs, by index.

    Raises:
        UnsupportedModel: there is none.
    """
    profiles = {}
    for index in range(engine.num_optimization_profiles):
        shapes = [_shapes(engine, tensor, index) for tensor in inputs]
        fewest = max(least[0] for least, _, _ in shapes)
        best = max(best[0] for _, best, _ in shapes)
        most = min(greatest[0] for _, _, greatest in shapes)
        if fewest <= most and all(map(_takes, shapes, inputs)):
            profiles[index] = Profile(fewest, min(best, most), most)
    if not profiles:
        raise UnsupportedModel(
            "no optimization profile of the engine has a number of rows that all inputs take: "
            "build it again with the same batches for every input"
        )
    return profiles


def choose_buckets(profiles: Mapping[int, Profile], max_batch: int) -> tuple[Bucket, ...]:
    """Return powers of two, and the sizes that profiles name, up to the largest batch.

    So padding less than doubles a batch, and there are few sizes: each needs a context.

    Args:
        profiles: by index; at least one.
        max_batch: most rows of a call, at least 1; larger batches than every bucket are split.

    Returns:
        Smallest first.
    """
    sizes = {size for p in profiles.values() for size in (p.min, p.opt, p.max)} | {max_batch}
    sizes |= {1 << power for power in range(max_batch.bit_length())}
    buckets: list[Bucket] = []
    for rows in sorted(sizes):
        suited = {index: p.opt for index, p in profiles.items() if p.min <= rows <= p.max}
        if suited:
            buckets.append(Bucket(rows, min(suited, key=lambda index: abs(suited[index] - rows))))
            if rows >= max_batch:
                break
    return tuple(buckets)


def _shapes(engine: Any, tensor: Tensor, profile: int) -> list[tuple[int, ...]]:
    """Return the minimum, optimum and maximum shape, rows first: 1 without a batch dimension."""
    shape = engine.get_tensor_shape(tensor.name)
    dynamic = -1 in tuple(shape)
    shapes = engine.get_tensor_profile_shape(tensor.name, profile) if dynamic else [shape] * 3
    return [tuple(each) if tensor.batched else (1, *each) for each in shapes]


def _takes(shapes: Sequence[tuple[int, ...]], tensor: Tensor) -> bool:
    """Return True if the row of a tensor is between a profile's minimum and maximum shape."""
    least, _, greatest = shapes
    return all(
        low <= size <= high
        for low, size, high in zip(least[1:], tensor.row, greatest[1:], strict=True)
    )
