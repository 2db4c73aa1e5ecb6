"""Distributions of what an engine finds on the images of its build, to compare live ones with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.task_result import TaskResult

MIN_LIVE: Final = 20
"""Images of fewer of which a distance would say nothing."""

_CONF = PredictOptions().conf
_BINS = 6
# Classes with a bin of their own, and images that have one; the rest are others.
_MAX_CLASSES, _MIN_OF_CLASS = 9, 5
# Between edges: the card has few digits.
_STEP = 1e-4

Floats = NDArray[np.float64]
Found = tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32] | None, int]
"""Scores, class ids, of objects the boxes, and the pixels of their image."""


class QuantityValues(NamedTuple):
    """Values of a quantity, and the number of the image that each is of."""

    values: Floats
    image: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The number of images in each bin; one with several objects is shared out among theirs.

    Attributes:
        edges: between bins, ascending: what equals an edge is above it. Of classes their ids, each
            of which is a bin; all others are in the last one.
        counts: of each bin, the first of which is under the first edge.
        spread: of single images: the sum over bins of their variance over their mean.
        exact: edges are ids.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    spread: float
    exact: bool = False

    @classmethod
    def of(cls, found: QuantityValues, *, exact: bool) -> Self:
        """Choose bins for values: equally many images in each, or one for each frequent class."""
        weights = _weights(found.image)
        if exact:
            ids, places = np.unique(found.values, return_inverse=True)
            images = np.bincount(places, weights)
            frequent = np.argsort(-images, kind="stable")[:_MAX_CLASSES]
            edges = np.sort(ids[frequent[images[frequent] >= _MIN_OF_CLASS]])
        else:
            shares = np.linspace(0, 1, _BINS + 1)
            steps = np.quantile(found.values, shares, weights=weights, method="inverted_cdf")
            steps = np.floor(steps / _STEP)
            # Beyond the largest value is a bin that only live images are in.
            steps[-1] += 1
            edges = np.unique(steps) * _STEP
        made = cls(tuple(edges.round(4).tolist()), (), 0.0, exact)
        each = made._share_by_image(found)
        mean = each.mean(axis=0)
        spread = float((each.var(axis=0)[mean > 0] / mean[mean > 0]).sum())
        counts = tuple(each.sum(axis=0).round(3).tolist())
        return cls(made.edges, counts, round(spread, 4), exact)

    def count(self, found: QuantityValues) -> Floats:
        """Return the number of images in each bin."""
        counts: Floats = self._share_by_image(found).sum(axis=0)
        return counts

    def _share_by_image(self, found: QuantityValues) -> Floats:
        """Return the shares of each image that has values, in the bins."""
        edges, bins = np.array(self.edges), len(self.edges) + 1
        if self.exact:
            places = np.searchsorted(edges, found.values)
            known = np.append(edges, np.nan)[places] == found.values
            places = np.where(known, places, len(edges))
        else:
            places = np.searchsorted(edges, found.values, "right")
        _, image = np.unique(found.image, return_inverse=True)
        images = int(image.max(initial=-1)) + 1
        flat = np.bincount(image * bins + places, _weights(found.image), images * bins)
        return flat.astype(np.float64).reshape(images, bins)

    def distance(self, live: Floats) -> float | None:
        """Return the population stability index of live images, less what chance explains.

        Of two samples of the same, spread * (1/n + 1/m) is the mean of the index; twice its
        deviation is added. None: there are too few live images.
        """
        n, m = live.sum(), sum(self.counts)
        if n < MIN_LIVE:
            return None
        before = np.array(self.counts)
        used = (before > 0) | (live > 0)
        # Half an image more in each bin: an empty one would be infinitely far.
        want, have = ((each[used] + 0.5) / (each[used] + 0.5).sum() for each in (before, live))
        index = ((have - want) * np.log(have / want)).sum()
        free = max(1, used.sum() - 1)
        chance = self.spread * (1 / n + 1 / m) * (1 + 2 * np.sqrt(2 / free))
        return max(0.0, float(index - chance))


@dataclass(frozen=True, slots=True)
class Baseline:
    """The distributions of what an engine finds on the images of its build.

    Attributes:
        images: their number.
        images_from: name of their folder.
        quantities: "scores", "classes", "sizes" (root of the share of the image), "objects" (of an
            image), "brightness"; as far as the task has them.
    """

    images: int
    images_from: str
    quantities: dict[str, Distribution]

    @classmethod
    def of(cls, images_from: str, found: Sequence[Found], brightness: Sequence[float]) -> Self:
        """Return the distributions of images: what was found on each, and how bright it is."""
        made = {
            name: Distribution.of(values, exact=name == "classes")
            for name, values in _quantities(found, brightness).items()
            if len(values.values)
        }
        return cls(len(brightness), images_from, made)

    def count(self, found: Sequence[Found], brightness: Sequence[float]) -> dict[str, Floats]:
        """Return the number of live images in each bin, by quantity."""
        live = _quantities(found, brightness)
        return {name: each.count(live.get(name, _NONE)) for name, each in self.quantities.items()}


_NONE = QuantityValues(np.zeros(0), np.zeros(0, np.intp))


def select_values(found: TaskResult | None, pixels: int) -> Found | None:
    """Return what is compared of a result for an image of so many pixels; None of other tasks.

    It is quick, and keeps little of the result in memory.
    """
    if isinstance(found, Detections):
        return found.scores, found.class_ids, found.boxes, pixels
    if isinstance(found, Classes):
        return found.scores[:1], found.class_ids[:1], None, pixels
    return None


def _quantities(found: Sequence[Found], brightness: Sequence[float]) -> dict[str, QuantityValues]:
    """Return the values of each quantity; objects of a score under .25 do not count."""
    of_images = {
        "brightness": QuantityValues(np.array(brightness, np.float64), np.arange(len(brightness)))
    }
    if not found:
        return of_images
    scores, ids = (np.concatenate([each[i] for each in found]).astype(float) for i in (0, 1))
    image = np.repeat(np.arange(len(found)), [len(each[0]) for each in found])
    boxes = [each[2] for each in found if each[2] is not None]
    if not boxes:
        return {
            "scores": QuantityValues(scores, image),
            "classes": QuantityValues(ids, image),
        } | of_images
    kept = scores >= _CONF
    image = image[kept]
    x1, y1, x2, y2 = np.concatenate(boxes)[kept].astype(float).T
    shares = (x2 - x1) * (y2 - y1) / np.array([each[3] for each in found])[image]
    number = np.bincount(image, minlength=len(found)).astype(float)
    return {
        "scores": QuantityValues(scores[kept], image),
        "classes": QuantityValues(ids[kept], image),
        "sizes": QuantityValues(np.sqrt(shares.clip(0, 1)), image),
        "objects": QuantityValues(number, np.arange(len(found))),
    } | of_images


def _weights(image: NDArray[np.intp]) -> Floats:
    """Return weights of which those of an image add up to 1."""
    return 1 / np.bincount(image)[image] if len(image) else np.zeros(0)
