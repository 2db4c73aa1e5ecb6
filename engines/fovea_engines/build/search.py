"""Searches for the blocks of a model that are worth keeping in float."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.assemble import candidate
from fovea_engines.build.calibration.ranges import Ranges
from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.precision.half import to_half
from fovea_engines.build.precision.qdq import quantise
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.detect.heads.recognise import open_head
from fovea_engines.engine import Engine
from fovea_engines.evaluate.agreement.measure import measure
from fovea_engines.evaluate.reference import answers, read_samples
from fovea_engines.progress import Progress
from fovea_preprocess.errors import InvalidOption

BUDGET = 0.9
"""Agreement that is good enough: no block need stay in float for more."""

# Images per block: enough for a hundred detections, few enough for a second each.
_IMAGES = 24
# Fewer blocks than this hide which one is to blame; more make the search long.
_FEWEST, _MOST = 8, 32
# Agreement below which one block more or less makes no visible difference.
_SPOILT = 0.1

Quality = Callable[[Iterable[str]], float]
"""Agreement (0 to 1) of the INT8 network in which the layers of these names stay float."""


def int8_graph(
    graph: onnx.ModelProto, ranges: Ranges, encoding: Encoding, keep_float: Collection[str]
) -> onnx.ModelProto:
    """Convert a model to INT8; the rest is FP32, or FP16 with `SIGNED`."""
    quantised = quantise(graph, ranges, encoding, keep_float)
    return to_half(quantised) if encoding is Encoding.SIGNED else quantised


def blocks(layers: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Group layers, in the network's order, by the part of the network that their names mean.

    "/model.4/cv1/conv/Conv" belongs to "model.4": names are cut at the depth where there are at
    least 8 groups. Names without parts ("Conv_44") are grouped by their place.
    """
    paths = [re.findall(r"[^/.]+", name.split("/aten::")[0]) for name in layers]
    for depth in range(1, max(map(len, paths), default=0)):
        groups = _grouped(layers, [".".join(path[:depth]) for path in paths])
        if _FEWEST <= len(groups) <= _MOST:
            return groups
    each = -(-len(layers) // _MOST)
    starts = [layers[i - i % each] for i in range(len(layers))]
    return _grouped(layers, starts)


def _grouped(layers: Sequence[str], keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for layer, key in zip(layers, keys, strict=True):
        groups.setdefault(key, []).append(layer)
    return {key: tuple(names) for key, names in groups.items()}


def select(patterns: Iterable[str], layers: Sequence[str]) -> tuple[str, ...]:
    """Return the layers that names of blocks, or patterns with `*` and `?`, pick out."""
    groups = blocks(layers)
    chosen: set[str] = set()
    for pattern in patterns:
        found = groups.get(pattern) or [name for name in layers if fnmatchcase(name, pattern)]
        if not found:
            raise InvalidOption(
                f"--keep-float {pattern!r} is no layer that INT8 would touch; the blocks are "
                f"{', '.join(groups)}"
            )
        chosen.update(found)
    return tuple(name for name in layers if name in chosen)


@dataclass(frozen=True, slots=True)
class Score:
    """Quality of one INT8 network: its agreement with the source, and its loss of a `metric`.

    `margin` is the surplus of the deciding figure over the required one: of `drop` if there are
    labels, else of `quality`. Negative values are not enough.
    """

    quality: float
    drop: float | None
    margin: float
    metric: str | None = None

    def __str__(self) -> str:
        lost = "" if self.drop is None else f" and {self.metric} {-self.drop:+.3f}"
        return f"agreement {self.quality:.3f}{lost}"


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Effect of keeping one block in float.

    Attributes:
        quality: agreement with the source when only this block is float; or, where no single block
            improves anything, when only this block is INT8.
        gain: `quality` less the agreement when no block is float; or `quality` less 1.
    """

    block: str
    layers: tuple[str, ...]
    quality: float
    gain: float


def rank(
    groups: Mapping[str, Sequence[str]], base: float, quality: Quality, progress: Progress
) -> list[Sensitivity]:
    """Keep one block at a time in float, and rank the blocks by their gain, largest first.

    Where no single block improves anything, because another block spoils the result by itself, one
    block at a time is put into INT8 instead. `base` is the agreement when no block is float;
    `quality` is called once or twice per block.
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
    """Keep the worst blocks in float, one more at a time, until the agreement reaches a budget.

    The ranking has the largest gain first; `base` is the agreement with every block quantised.
    Returns the blocks to keep and the agreement that they reach; the best agreement found if
    blocks with a gain cannot meet the budget.
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


@dataclass(frozen=True, slots=True)
class SensitivitySearch:
    """Result of the search for blocks to keep in float.

    `base` is the score before, `reached` the one with the `kept` blocks in float. `ranking` has
    every block by itself, largest gain first.
    """

    base: Score
    ranking: tuple[Sensitivity, ...]
    kept: tuple[Sensitivity, ...]
    reached: Score


class CandidateEngines:
    """Builds and measures temporary INT8 networks of one model, in one encoding.

    They run as `candidate` says: on the serving backend if possible, because a correct graph is
    not enough. Without labelled images (`truth`) the agreement decides.
    """

    def __init__(
        self,
        plan: BuildPlan,
        prepared: PreparedModel,
        ranges: Ranges,
        encoding: Encoding,
        truth: LabelledEvaluation | None = None,
    ) -> None:
        self._plan = plan
        self._prepared = prepared
        self._ranges = ranges
        self._truth = truth
        # Measured here, so that it is a phase by itself and not part of a candidate's.
        self._source_figure = 0.0 if truth is None else truth.source.figure
        self._encoding = encoding
        outputs = [output.name for output in prepared.outputs]
        self._samples = list(
            read_samples(
                plan.source,
                prepared.preprocess,
                outputs,
                plan.check_images,
                _IMAGES,
                head=open_head(prepared.head, prepared.inputs),
            )
        )

    def score(self, keep_float: Iterable[str]) -> Score:
        """Measure the network with the named layers in float."""
        with self._engine(keep_float) as engine:
            quality = self._quality_of(engine)
            drop = metric = None
            if self._truth is not None:
                metric = self._truth.source.metric
                drop = self._source_figure - self._truth.figure_of(engine)
        margin = quality - BUDGET if drop is None else self._plan.max_drop - drop
        return Score(quality, drop, margin, metric)

    def search(
        self, layers: Sequence[str], kept: Sequence[str], base: Score, progress: Progress
    ) -> SensitivitySearch:
        """Try each block of layers in float, beside those `kept` in float, and keep the best."""
        seen = [base]

        def quality(more: Iterable[str]) -> float:
            with self._engine([*kept, *more]) as engine:
                return self._quality_of(engine)

        def margin(more: Iterable[str]) -> float:
            seen.append(self.score([*kept, *more]))
            return seen[-1].margin

        ranking = rank(blocks(layers), base.quality, quality, progress)
        found, reached = keep_until(0.0, base.margin, ranking, margin)
        best = next(one for one in seen if one.margin == reached)
        return SensitivitySearch(base, tuple(ranking), tuple(found), best)

    def _quality_of(self, engine: Engine) -> float:
        return measure(engine.head, answers(engine, self._samples)).least

    def _engine(self, keep_float: Iterable[str]) -> AbstractContextManager[Engine]:
        graph = int8_graph(self._prepared.graph, self._ranges, self._encoding, tuple(keep_float))
        return candidate(self._plan, self._prepared, graph, "int8", self._encoding)
