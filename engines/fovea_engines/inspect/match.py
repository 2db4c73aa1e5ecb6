"""Finds corresponding layers in two models."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fovea_engines.heads.nms_tail import RAW
from fovea_engines.inspect.network import Layer

# Smallest fraction of the layers with equal names that must have the same operator or shape. If the
# fraction is smaller, names are not used to pair layers: some exporters only number the tensors, so
# different tensors get equal names.
_TRUSTED = 0.9


@dataclass(frozen=True, slots=True)
class Pair:
    """Two corresponding layers.

    Attributes:
        a: index of the layer in the first model.
        b: index of the layer in the second model.
        by: method that paired the layers.
    """

    a: int
    b: int
    by: Literal["name", "order"]


def match(a: Sequence[Layer], b: Sequence[Layer]) -> list[Pair]:
    """Pair the layers of two models, and return the pairs in the order of the first model.

    A layer is in at most one pair.

    First, layers with equal names are paired, if the names are reliable. The remaining layers are
    paired by the longest common subsequence of their operators and shapes. Then the remaining
    layers with equal shapes are paired if they lie between the same paired layers.
    """
    named = _pair_by_name(a, b)
    taken = set(named.values())
    keys_a = [named.get(i, _key(layer)) for i, layer in enumerate(a)]
    keys_b = [j if j in taken else _key(layer) for j, layer in enumerate(b)]
    paired = dict(_common_subsequence(keys_a, keys_b)) | named
    paired |= dict(_find_replaced(a, b, paired))
    pairs = [Pair(i, paired[i], "name" if i in named else "order") for i in sorted(paired)]
    return [pair for pair in pairs if a[pair.a].is_float == b[pair.b].is_float]


def _key(layer: Layer) -> tuple[str, int, tuple[int, ...]]:
    return layer.op, layer.port, layer.shape


def _pair_by_name(a: Sequence[Layer], b: Sequence[Layer]) -> dict[int, int]:
    owner = {name: j for j, layer in reversed(list(enumerate(b))) for name in layer.names}
    owner |= {name.removesuffix(RAW): j for name, j in owner.items() if name.endswith(RAW)}
    named: dict[int, int] = {}
    taken: set[int] = set()
    for i, layer in enumerate(a):
        j = next((owner[name] for name in layer.names if name in owner), None)
        if j is not None and j not in taken:
            named[i] = j
            taken.add(j)
    alike = sum(_are_alike(a[i], b[j]) for i, j in named.items())
    if alike < _TRUSTED * len(named):
        return {}
    return {i: j for i, j in named.items() if not _is_renamed(a[i], b[j])}


def _are_alike(one: Layer, other: Layer) -> bool:
    if one.op == other.op:
        return True
    # A simplified graph may compute a tensor with other operators, but keeps its name. Only names
    # that are paths, such as /model/conv/output, are reliable for this.
    return ("" in (one.op, other.op) or "/" in one.name) and one.shape == other.shape


def _is_renamed(one: Layer, other: Layer) -> bool:
    """Return whether a simplified graph uses the first layer's name for a different tensor."""
    return "" not in (one.op, other.op) and one.op != other.op and one.shape != other.shape


def _find_replaced(
    a: Sequence[Layer], b: Sequence[Layer], paired: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of layers that lie between the same paired layers in both models."""
    above_a, above_b = paired_sources(a, paired), paired_sources(b, set(paired.values()))
    below_a, below_b = _readers(a), _readers(b)
    free = sorted(set(range(len(b))) - set(paired.values()))
    for i, layer in enumerate(a):
        if i in paired:
            continue
        above = {paired[source] for source in above_a[i]}
        below = {paired.get(reader) for reader in below_a[i]}
        for j in free:
            last = layer.is_output and b[j].is_output
            between = above & above_b[j] and (last or below & below_b[j])
            if between and layer.shape == b[j].shape:
                free.remove(j)
                yield i, j
                break


def paired_sources(layers: Sequence[Layer], paired: Container[int]) -> list[set[int]]:
    """Return for each layer the indices of the nearest paired layers on which it depends."""
    sources: list[set[int]] = []
    for layer in layers:
        nearest: set[int] = set()
        for read in layer.inputs:
            nearest |= {read} if read in paired else sources[read]
        sources.append(nearest)
    return sources


def _readers(layers: Sequence[Layer]) -> list[set[int]]:
    readers: list[set[int]] = [set() for _ in layers]
    for position, layer in enumerate(layers):
        for read in layer.inputs:
            readers[read].add(position)
    return readers


def _common_subsequence(a: Sequence[Hashable], b: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield the index pairs of the longest common subsequence of two lists of keys."""
    begin, end_a, end_b = 0, len(a), len(b)
    while begin < min(end_a, end_b) and a[begin] == b[begin]:
        yield begin, begin
        begin += 1
    while begin < min(end_a, end_b) and a[end_a - 1] == b[end_b - 1]:
        end_a, end_b = end_a - 1, end_b - 1
        yield end_a, end_b
    number = {key: n for n, key in enumerate({*a, *b})}
    rest_a = np.array([number[key] for key in a[begin:end_a]], np.int64)
    rest_b = np.array([number[key] for key in b[begin:end_b]], np.int64)
    # longest[i, j]: length of the longest common subsequence of the first i and the first j keys.
    longest = np.zeros((len(rest_a) + 1, len(rest_b) + 1), np.int32)
    for i, key in enumerate(rest_a):
        best = np.maximum(longest[i, 1:], longest[i, :-1] + (rest_b == key))
        np.maximum.accumulate(best, out=longest[i + 1, 1:])
    i, j = len(rest_a), len(rest_b)
    while i and j:
        if longest[i, j] == longest[i - 1, j]:
            i -= 1
        elif longest[i, j] == longest[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            yield begin + i, begin + j
