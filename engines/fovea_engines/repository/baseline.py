"""Distributions of an engine's results on the images of its build, to detect drift."""

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
"""Smallest number of live images for which a distance is meaningful."""

_CONF = PredictOptions().conf
_BINS = 6
# Largest number of classes with their own bin, and smallest number of images of such a class. The
# last bin counts all other classes.
_MAX_CLASSES, _MIN_OF_CLASS = 9, 5
# Rounding of edges, to keep the numbers in the card short.
_STEP = 1e-4

Floats = NDArray[np.float64]
Found = tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32] | None, int]
"""Scores, class ids, boxes (None without objects), and number of pixels of the image."""


class QuantityValues(NamedTuple):
    """Values of a quantity, and for each value the index of its image."""

    values: Floats
    image: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The number of images in each bin. An image with several objects is divided among their bins.

    Attributes:
        edges: ascending edges between bins; a value equal to an edge is in the upper bin. For
            classes: the ids with their own bin; the last bin has all other classes.
        counts: number of images in each bin. The first bin is below the first edge.
        spread: sum over bins of variance / mean over single images.
        exact: True if the edges are class ids.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    spread: float
    exact: bool = False

    @classmethod
    def of(cls, found: QuantityValues, *, exact: bool) -> Self:
        """Choose bins with equal numbers of images, or one bin for each frequent class."""
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
            # The bin above the largest value is empty here, and may only contain live images.
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
        """Return the fractions of each image with values in the bins, [images, bins]."""
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
        """Return the population stability index of live images, minus the part due to chance.

        For two samples of the same distribution, spread * (1/n + 1/m) is the mean of the index. Two
        standard deviations are added to it.

        Returns:
            The distance, at least 0; None if there are too few live images.
        """
        n, m = live.sum(), sum(self.counts)
        if n < MIN_LIVE:
            return None
        before = np.array(self.counts)
        used = (before > 0) | (live > 0)
        # Each bin gets half an image more, because an empty bin would make the index infinite.
        want, have = ((each[used] + 0.5) / (each[used] + 0.5).sum() for each in (before, live))
        index = ((have - want) * np.log(have / want)).sum()
        free = max(1, used.sum() - 1)
        chance = self.spread * (1 / n + 1 / m) * (1 + 2 * np.sqrt(2 / free))
        return max(0.0, float(index - chance))


@dataclass(frozen=True, slots=True)
class Baseline:
    """The distributions of an engine's results on the images of its build.

    Attributes:
        images: number of images.
        images_from: name of their directory.
        quantities: distributions of "scores", "classes", "sizes" (square root of the fraction of
            the image), "objects" (per image) and "brightness", as far as the task has them.
    """

    images: int
    images_from: str
    quantities: dict[str, Distribution]

    @classmethod
    def of(cls, images_from: str, found: Sequence[Found], brightness: Sequence[float]) -> Self:
        """Return the distributions of images, from their results and their brightness (0 to 1)."""
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
    """Return the values of a result to compare, or None for other tasks.

    It is quick, and the returned values need little memory. `pixels` is the number of pixels of the
    image.
    """
    if isinstance(found, Detections):
        return found.scores, found.class_ids, found.boxes, pixels
    if isinstance(found, Classes):
        return found.scores[:1], found.class_ids[:1], None, pixels
    return None


def _quantities(found: Sequence[Found], brightness: Sequence[float]) -> dict[str, QuantityValues]:
    """Return the values of each quantity. Objects with a score below 0.25 are left out."""
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
    """Return weights that add up to 1 for each image."""
    return 1 / np.bincount(image)[image] if len(image) else np.zeros(0)
