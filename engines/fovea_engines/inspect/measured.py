"""Measures the pairs of layers of two networks, and judges them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from fovea_engines.inspect.causes import differences
from fovea_engines.inspect.figures import Figures, figures_of
from fovea_engines.inspect.match import Pair
from fovea_engines.inspect.models import Feeds
from fovea_engines.inspect.network import Layer, Network
from fovea_engines.inspect.verdict import Comparison, judge
from fovea_engines.progress import Progress
from fovea_engines.session import Array

# Limit of the tensors kept from the runs of each model.
_CHUNK_BYTES = 256 << 20
# The orders of more dimensions are too many to try.
_MAX_DIMENSIONS = 5


@dataclass(frozen=True, eq=False)
class Measured:
    """Two networks whose layers are paired, and what they are fed."""

    a: Network
    b: Network
    pairs: Sequence[Pair]
    feeds: Feeds
    threshold_db: float
    progress: Progress

    def judged(self) -> list[Comparison]:
        """Judge every pair, in the first network's order.

        To read a tensor of a network that `fuses` as it is served takes a compilation each: so are
        the outputs read, and the others only where something diverges.
        """
        alike = [pair for pair in self.pairs if _orders(*self._layers(pair))]
        figures = self._measure(alike)
        if not (self.a.fuses or self.b.fuses):
            return self._judge(figures)
        outputs = [pair for pair in alike if self._layers(pair)[0].is_output]
        figures |= self._measure(outputs, alone=True)
        layers = self._judge(figures)
        if any(one.state == "diverges" for one in layers):
            inner = [pair for pair in alike if pair not in outputs]
            layers = self._judge(figures | self._measure(inner, alone=True))
        return layers

    def _layers(self, pair: Pair) -> tuple[Layer, Layer]:
        return self.a.layers[pair.a], self.b.layers[pair.b]

    def _judge(self, figures: dict[Pair, Figures]) -> list[Comparison]:
        return judge(
            self.a.layers,
            self.b.layers,
            {pair: figures.get(pair) for pair in self.pairs},
            self.threshold_db,
            lambda pair: bool(differences(self.a, self.b, pair)),
        )

    def _measure(self, pairs: Sequence[Pair], *, alone: bool = False) -> dict[Pair, Figures]:
        with self.progress.phase("compare"):
            found = self._figures(pairs, alone=alone)
            return dict(self.progress.each(found, len(pairs)))

    def _figures(self, pairs: Sequence[Pair], *, alone: bool) -> Iterator[tuple[Pair, Figures]]:
        nbytes = 0 if alone else _CHUNK_BYTES // len(self.feeds.names)
        for chunk in _chunks(self.a.layers, pairs, nbytes):
            both = [self._layers(pair) for pair in chunk]
            tensors_a = self.a.run([a.tensor for a, _ in both], self.feeds.a)
            tensors_b = self.b.run([b.tensor for _, b in both], self.feeds.b)
            for pair, (a, b), one, other in zip(chunk, both, tensors_a, tensors_b, strict=True):
                arrays = zip(one, _as_in(a, b, one, other), strict=True)
                yield pair, figures_of(arrays, channels=a.is_output and a.is_float)


def _orders(a: Layer, b: Layer) -> list[tuple[int, ...]]:
    """Return the orders in which the second's dimensions, but those of 1, are the first's.

    A runtime may keep a tensor under its name and transpose it, where an operator after it did.
    """
    if a.shape == b.shape:
        return [tuple(range(len(a.shape)))]
    want, have = ([n for n in shape if n != 1] for shape in (a.shape, b.shape))
    if "" not in (a.op, b.op) or a.is_output or len(have) > _MAX_DIMENSIONS:
        return []
    places = permutations(range(len(have)))
    return [order for order in places if [have[place] for place in order] == want]


def _as_in(a: Layer, b: Layer, one: Sequence[Array], other: Sequence[Array]) -> Sequence[Array]:
    """Return the second's arrays in that of their orders which is most like the first's."""
    if a.shape == b.shape:
        return other
    laid = [
        [each.squeeze().transpose(order).reshape(a.shape) for each in other]
        for order in _orders(a, b)
    ]
    return min(laid, key=lambda arrays: float(np.abs(arrays[0] - one[0]).sum()))


def _chunks(layers: Sequence[Layer], pairs: Sequence[Pair], nbytes: int) -> Iterator[list[Pair]]:
    """Split pairs so that the tensors of each part, if more than one, fit into so many bytes."""
    chunk: list[Pair] = []
    room = nbytes
    for pair in pairs:
        room -= layers[pair.a].nbytes
        if chunk and room < 0:
            yield chunk
            chunk, room = [], nbytes - layers[pair.a].nbytes
        chunk.append(pair)
    if chunk:
        yield chunk
