"""Adds up the comparisons of single images to a report."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

from fovea_engines.results.class_names import class_name
from fovea_server.rollout.shadow_compare import ComparedObject, ImageComparison
from fovea_server.rollout.shadow_report import ClassChange, ShadowFigures, ShadowReport, ShadowWorst

_Z = 1.96

WORST = 50
_CHANGES = 20


@dataclass(slots=True)
class ClusteredShare:
    """The fraction of differing objects, with a confidence interval.

    Objects come in clusters, one per image. Only sums are stored, not the clusters.
    """

    clusters: int = 0
    differing: float = 0.0
    total: float = 0.0
    _differing2: float = 0.0
    _product: float = 0.0
    _total2: float = 0.0

    def add(self, differing: float, total: float) -> None:
        """Add a cluster of `total` objects; `differing` of these objects differ.

        A cluster without objects is not counted.
        """
        self.clusters += total > 0
        self.differing += differing
        self.total += total
        self._differing2 += differing**2
        self._product += differing * total
        self._total2 += total**2

    @property
    def value(self) -> float | None:
        """The fraction of objects that differ; None if no object was added."""
        return self.differing / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval (low, high) of the fraction; None if no object was added.

        Several objects of one image often differ together. So this is Wilson's interval for the
        effective sample size, which is the number of independent objects that would give the same
        variance (Korn and Graubard, Survey Methodology 24, 1998).
        """
        if (share := self.value) is None:
            return None
        # If no object or every object differs, the effect of clustering is unknown. Then each
        # cluster counts as a single sample, which is the widest interval.
        alone = float(self.clusters)
        if 0 < share < 1 and self.clusters > 1:
            spread = self._differing2 - 2 * share * self._product + share**2 * self._total2
            spread *= self.clusters / (self.clusters - 1)
            least = share * (1 - share) * self.total
            alone = self.total * min(1.0, least / max(spread, least))
        middle = share + _Z**2 / (2 * alone)
        half = _Z * sqrt(share * (1 - share) / alone + _Z**2 / (4 * alone**2))
        scale = 1 + _Z**2 / alone
        return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total, self.count = self.total + value, self.count + 1

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class _Sums:
    verdicts: Counter[str] = field(default_factory=Counter)
    overlap: _Mean = field(default_factory=_Mean)
    drift: _Mean = field(default_factory=_Mean)

    def add(self, one: ComparedObject) -> None:
        self.verdicts[one.verdict] += 1
        self.overlap.add(one.overlap)
        self.drift.add(one.drift)

    def figures(self) -> ShadowFigures:
        return ShadowFigures(
            objects=self.verdicts["same"] + self.verdicts["missed"],
            missed=self.verdicts["missed"],
            extra=self.verdicts["extra"],
            overlap=self.overlap.value,
            score_drift=self.drift.value,
        )


class ShadowCounts:
    """The sums of all comparisons of a shadow."""

    def __init__(self, labels: Sequence[str] | None) -> None:
        self._labels = labels
        self._images = self._failed = 0
        self._error = ""
        self._all = _Sums()
        self._classes: defaultdict[int, _Sums] = defaultdict(_Sums)
        self._sizes: defaultdict[str, _Sums] = defaultdict(_Sums)
        self._changes: Counter[tuple[int, int]] = Counter()
        self._shared = _Mean()
        self._differing = ClusteredShare()
        self._overlap_of = ""
        self._worst: list[tuple[float, int, ShadowWorst]] = []

    def fail(self, error: str) -> None:
        """Count an image on which the candidate failed, and store the error."""
        self._failed, self._error = self._failed + 1, error

    def add(self, one: ImageComparison) -> None:
        """Add the comparison of an image."""
        self._images += 1
        self._differing.add(one.differing, one.total)
        self._overlap_of = self._overlap_of or one.overlap_of
        self._changes.update(one.changes)
        self._shared.add(one.shared)
        for judged in one.objects:
            groups = [self._all, self._classes[judged.class_id]]
            for group in [*groups, self._sizes[judged.size]] if judged.size else groups:
                group.add(judged)

    def is_worst(self, one: ImageComparison) -> bool:
        """Return whether the image is one of the worst images so far."""
        fewer = len(self._worst) < WORST
        return one.lost > 0 and (fewer or one.lost > self._worst[0][0])

    def keep(self, one: ImageComparison, number: int, picture: str, request_id: str) -> None:
        """Add an image to the worst images.

        If there are too many, drop the image that differs least.

        Args:
            one: comparison of the image.
            number: number of the image. If two images differ equally, the earlier image counts as
                worse.
            picture: name of the drawing with both results.
            request_id: id of the request that contained the image.
        """
        missed, extra = (
            sum(judged.verdict == verdict for judged in one.objects)
            for verdict in ("missed", "extra")
        )
        entry = ShadowWorst(
            picture=picture, request_id=request_id, missed=missed, extra=extra, lost=one.lost
        )
        push = heapq.heappush if len(self._worst) < WORST else heapq.heapreplace
        push(self._worst, (one.lost, -number, entry))

    def report(self) -> ShadowReport:
        """Make the report."""
        interval = self._differing.interval
        return ShadowReport(
            images=self._images,
            disagreement=self._differing.value,
            interval=None if interval is None else list(interval),
            overlap_of=self._overlap_of,
            shared=self._shared.value,
            all=self._all.figures(),
            classes={
                class_name(self._labels, each): self._classes[each].figures()
                for each in sorted(self._classes)
            },
            sizes={
                size: self._sizes[size].figures()
                for size in ("small", "medium", "large")
                if size in self._sizes
            },
            changes=[
                ClassChange(
                    live=class_name(self._labels, live),
                    candidate=class_name(self._labels, candidate),
                    count=count,
                )
                for (live, candidate), count in self._changes.most_common(_CHANGES)
            ],
            failed=self._failed,
            error=self._error,
            worst=[entry for _, _, entry in sorted(self._worst, reverse=True)],
        )
