"""Stores the distributions of an engine's results on the images of its build, to detect drift."""

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
# Largest number of classes that have their own bin, and smallest number of images for such a class.
# The last bin counts all other classes.
_MAX_CLASSES, _MIN_OF_CLASS = 9, 5
# Step to which edges are rounded. Rounding keeps the numbers in the card short.
_STEP = 1e-4

Floats = NDArray[np.float64]
Found = tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32] | None, int]
"""Scores, class ids, boxes (None for a classifier), and the image's number of pixels."""


class QuantityValues(NamedTuple):
    """The values of a quantity in several images, and for each value the index of its image."""

    values: Floats
    image: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The number of images in each bin of a quantity, e.g. of the scores.

    An image with several objects counts as a fraction in the bin of each object.

    Attributes:
        edges: ascending edges between bins. A value that equals an edge is in the bin above it. If
            `exact` is True, the edges are the ids of the classes that have their own bin; the last
            bin has all other classes.
        counts: number of images in each bin. The first bin has the values below the first edge.
        spread: sum over all bins of variance / mean, where the variance and the mean are taken over
            the images' fractions in the bin.
        exact: True if the edges are class ids, False if they are edges of intervals.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    spread: float
    exact: bool = False

    @classmethod
    def of(cls, found: QuantityValues, *, exact: bool) -> Self:
        """Choose bins for the values of a quantity, and return their distribution.

        If `exact` is True, each frequent class has its own bin. Otherwise each bin has about the
        same number of images.
        """
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
            # The last edge is above the largest value. So the bin above it is empty now, and counts
            # live values that are larger than all values here.
            steps[-1] += 1
            edges = np.unique(steps) * _STEP
        made = cls(tuple(edges.round(4).tolist()), (), 0.0, exact)
        each = made._share_by_image(found)
        mean = each.mean(axis=0)
        spread = float((each.var(axis=0)[mean > 0] / mean[mean > 0]).sum())
        counts = tuple(each.sum(axis=0).round(3).tolist())
        return cls(made.edges, counts, round(spread, 4), exact)

    def count(self, found: QuantityValues) -> Floats:
        """Return the number of images in each bin for other values of the quantity."""
        counts: Floats = self._share_by_image(found).sum(axis=0)
        return counts

    def _share_by_image(self, found: QuantityValues) -> Floats:
        """Return the fraction of each image's values in each bin, float64 [images, bins]."""
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
        """Return how much live images differ from this distribution.

        The result is the population stability index, minus the part that chance explains. `live` is
        the number of live images in each bin.

        For two samples of the same distribution with n and m images, the mean of the index is
        spread * (1/n + 1/m). The subtracted part is this mean plus two standard deviations.

        Returns:
            The distance, at least 0. If there are too few live images, None.
        """
        n, m = live.sum(), sum(self.counts)
        if n < MIN_LIVE:
            return None
        before = np.array(self.counts)
        used = (before > 0) | (live > 0)
        # Add half an image to each bin, because an empty bin would make the index infinite.
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
        images_from: name of the directory or label file of the images.
        quantities: name of each quantity that the task has -> its distribution. The quantities are
            "scores", "classes", "sizes" (square root of the object's fraction of the image's area),
            "objects" (number of objects in an image) and "brightness".
    """

    images: int
    images_from: str
    quantities: dict[str, Distribution]

    @classmethod
    def of(cls, images_from: str, found: Sequence[Found], brightness: Sequence[float]) -> Self:
        """Return the baseline for the results and the brightness values (0 to 1) of some images."""
        made = {
            name: Distribution.of(values, exact=name == "classes")
            for name, values in _quantities(found, brightness).items()
            if len(values.values)
        }
        return cls(len(brightness), images_from, made)

    def count(self, found: Sequence[Found], brightness: Sequence[float]) -> dict[str, Floats]:
        """Return a mapping from each quantity to the number of live images in each bin."""
        live = _quantities(found, brightness)
        return {name: each.count(live.get(name, _NONE)) for name, each in self.quantities.items()}


_NONE = QuantityValues(np.zeros(0), np.zeros(0, np.intp))


def select_values(found: TaskResult | None, pixels: int) -> Found | None:
    """Return the values of a result that a baseline compares.

    If the task has no such values, return None.

    The function is fast, and the values need little memory. `pixels` is the image's number of
    pixels.
    """
    if isinstance(found, Detections):
        return found.scores, found.class_ids, found.boxes, pixels
    if isinstance(found, Classes):
        return found.scores[:1], found.class_ids[:1], None, pixels
    return None


def _quantities(found: Sequence[Found], brightness: Sequence[float]) -> dict[str, QuantityValues]:
    """Return a mapping from the name of each quantity to its values in several images.

    Objects with a score below 0.25 are left out.
    """
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
    """Return a weight for each value. The weights of the values of one image add up to 1."""
    return 1 / np.bincount(image)[image] if len(image) else np.zeros(0)
