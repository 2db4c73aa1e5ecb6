"""Runs two models, and compares their tensors layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import isfinite
from pathlib import Path

import numpy as np

from fovea_engines.evaluation.samples import image_files
from fovea_engines.inspect.causes import differences, find_causes
from fovea_engines.inspect.figures import Figures, figures_of
from fovea_engines.inspect.match import Pair, match
from fovea_engines.inspect.models import Feeds, find_models, make_feeds
from fovea_engines.inspect.network import INPUT, Layer, Network
from fovea_engines.inspect.verdict import Comparison, default_threshold, judge
from fovea_engines.progress import Progress
from fovea_engines.repository.card import Precision
from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidOption

# Largest total size in bytes of the tensors that are kept in memory for each model.
_CHUNK_BYTES = 256 << 20
# Largest number of dimensions of a tensor for which all permutations are tried.
_MAX_DIMENSIONS = 5


@dataclass(frozen=True, eq=False)
class Measured:
    """Two models with paired layers, and the inputs for their comparison.

    Attributes:
        a: first model.
        b: second model.
        pairs: pairs of corresponding layers.
        feeds: inputs for both models.
        threshold_db: SNR in decibel below which a tensor diverges.
        progress: object that receives the phases.
    """

    a: Network
    b: Network
    pairs: Sequence[Pair]
    feeds: Feeds
    threshold_db: float
    progress: Progress

    def judge(self) -> list[Comparison]:
        """Compare each pair of layers, and return the results in the order of the first model.

        If a model's `fuses` is True, reading a tensor as the server computes it needs a separate
        compilation for each tensor. So only the outputs are read in this way. The other tensors are
        only read in this way if a tensor diverges.
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
                arrays = zip(one, _match_order(a, b, one, other), strict=True)
                yield pair, figures_of(arrays, channels=a.is_output and a.is_float)


def _orders(a: Layer, b: Layer) -> list[tuple[int, ...]]:
    """Return the permutations that convert the second layer's shape to the first layer's shape.

    Dimensions of length 1 are ignored.

    A runtime may store a tensor transposed under its original name, if a later operator transposes
    it.
    """
    if a.shape == b.shape:
        return [tuple(range(len(a.shape)))]
    want, have = ([n for n in shape if n != 1] for shape in (a.shape, b.shape))
    if "" not in (a.op, b.op) or a.is_output or len(have) > _MAX_DIMENSIONS:
        return []
    places = permutations(range(len(have)))
    return [order for order in places if [have[place] for place in order] == want]


def _match_order(
    a: Layer, b: Layer, one: Sequence[Array], other: Sequence[Array]
) -> Sequence[Array]:
    """Return the second model's arrays, transposed so that they are most similar to the first's."""
    if a.shape == b.shape:
        return other
    laid = [
        [each.squeeze().transpose(order).reshape(a.shape) for each in other]
        for order in _orders(a, b)
    ]
    return min(laid, key=lambda arrays: float(np.abs(arrays[0] - one[0]).sum()))


def _chunks(layers: Sequence[Layer], pairs: Sequence[Pair], nbytes: int) -> Iterator[list[Pair]]:
    """Split the pairs into parts.

    The tensors of a part fit into `nbytes`, or the part has one pair.
    """
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


@dataclass(frozen=True, slots=True)
class Diff:
    """The result of a comparison of two models.

    Attributes:
        a: path of the first model.
        b: path of the second model.
        precision_a: lowest precision of the arithmetic in the first model.
        precision_b: lowest precision of the arithmetic in the second model.
        images: names of the images or random inputs that both models received.
        threshold_db: SNR in decibel below which a tensor diverges.
        layers: results for all pairs, in the order of the first model.
        unmatched_a: layers of the first model without a counterpart.
        unmatched_b: layers of the second model without a counterpart.
        first: first pair that diverges; None if no pair diverges.
        causes: texts about the differences in the computation of `first`; empty if the error grew
            gradually over several layers.
    """

    a: Path
    b: Path
    precision_a: Precision
    precision_b: Precision
    images: tuple[str, ...]
    threshold_db: float
    layers: tuple[Comparison, ...]
    unmatched_a: tuple[Layer, ...]
    unmatched_b: tuple[Layer, ...]
    first: Comparison | None
    causes: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Return whether no tensor diverges, and every output of the first model was compared."""
        return self.first is None and not self.undecided

    @property
    def undecided(self) -> tuple[Layer, ...]:
        """Return the first model's outputs that have no counterpart, or that were not judged."""
        unjudged = (one.a for one in self.layers if one.state == "not judged")
        return tuple(x for x in (*self.unmatched_a, *unjudged) if x.is_output)


def diff(
    path_a: Path,
    path_b: Path,
    images: Path | None = None,
    threshold_db: float | None = None,
    progress: Progress | None = None,
    head: str | None = None,
) -> Diff:
    """Compare two versions of the same model, e.g. an ONNX file and an engine, layer by layer.

    The first model is the reference.

    Args:
        path_a: first model: an .onnx file or the directory of an engine.
        path_b: second model: an .onnx file or the directory of an engine.
        images: directory of images. At most 4 of them are used. None means the images that ship
            with Fovea.
        threshold_db: SNR in decibel below which a tensor diverges; None means a default for the
            precisions of the models.
        progress: object that receives the phases.
        head: head family of the .onnx files; None means that the families are recognised.

    Raises:
        NotFound: a model does not exist.
        InvalidModel: a model cannot be read.
        UnsupportedModel: a model cannot be run.
        InvalidOption: the models have different inputs, no layers match, there is no image, or the
            threshold is not a positive number.
    """
    if threshold_db is not None and not (isfinite(threshold_db) and threshold_db > 0):
        raise InvalidOption(
            f"the threshold is {threshold_db:g} dB, but must be over 0 dB, such as 60 for two "
            "FP32 models"
        )
    if images is not None:
        image_files(images, 1)
    progress = progress or Progress()
    with progress.phase("load"):
        model_a, model_b = find_models(path_a, path_b, head)
        feeds = make_feeds(model_a, model_b, images)
    with progress.phase("match"):
        a, b = model_a.open(feeds.a[0]), model_b.open(feeds.b[0])
        pairs = match(a.layers, b.layers)
    if all(a.layers[pair.a].op == INPUT for pair in pairs):
        raise InvalidOption(
            f"no layer of {path_a} matches a layer of {path_b}, by name or by operator and shape: "
            "give two exports of the same model"
        )
    if threshold_db is None:
        threshold_db = default_threshold(a.precision, b.precision)
    layers = Measured(a, b, pairs, feeds, threshold_db, progress).judge()
    first = next((one for one in layers if one.state == "diverges"), None)
    causes: tuple[str, ...] = ()
    if first is not None and first.is_jump:
        causes = find_causes(a, b, first, {one.a.name: one.b.name for one in layers})
    paired_a, paired_b = {pair.a for pair in pairs}, {pair.b for pair in pairs}
    return Diff(
        a=model_a.path,
        b=model_b.path,
        precision_a=a.precision,
        precision_b=b.precision,
        images=feeds.names,
        threshold_db=threshold_db,
        layers=tuple(layers),
        unmatched_a=tuple(x for i, x in enumerate(a.layers) if i not in paired_a),
        unmatched_b=tuple(x for i, x in enumerate(b.layers) if i not in paired_b),
        first=first,
        causes=causes,
    )
