"""Searches for the blocks of a model that are worth keeping in float."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.assemble import candidate
from fovea_engines.build.calibration.ranges import Ranges
from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.precision.blocks import blocks
from fovea_engines.build.precision.half import to_half
from fovea_engines.build.precision.qdq import quantise
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.engine import Engine
from fovea_engines.evaluate.agreement.measure import measure
from fovea_engines.evaluate.agreement.samples import answers, read_samples
from fovea_engines.evaluate.agreement.sensitivity import Sensitivity, keep_until, rank
from fovea_engines.progress import Progress

if TYPE_CHECKING:
    import onnx

BUDGET = 0.9
"""Agreement that is good enough: no block need stay in float for more."""

# Images per block: enough for a hundred detections, few enough for a second each.
_IMAGES = 24


def int8_graph(
    graph: onnx.ModelProto, ranges: Ranges, encoding: Encoding, keep_float: Collection[str]
) -> onnx.ModelProto:
    """Convert a model to INT8; the rest is FP32, or FP16 with `SIGNED`."""
    quantised = quantise(graph, ranges, encoding, keep_float)
    return to_half(quantised) if encoding is Encoding.SIGNED else quantised


@dataclass(frozen=True, slots=True)
class Score:
    """Quality of one INT8 network: its agreement with the source, and its loss of mAP50-95.

    `margin` is the surplus of the deciding figure over the required one: of `drop` if there are
    labels, else of `quality`. Negative values are not enough.
    """

    quality: float
    drop: float | None
    margin: float

    def __str__(self) -> str:
        """Format the score for the log of a build."""
        lost = "" if self.drop is None else f" and mAP50-95 {-self.drop:+.3f}"
        return f"agreement {self.quality:.3f}{lost}"


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
        self._source_map = 0.0 if truth is None else truth.source.map50_95
        self._encoding = encoding
        outputs = [output.name for output in prepared.outputs]
        self._samples = list(
            read_samples(plan.source, prepared.preprocess, outputs, plan.check_images, _IMAGES)
        )

    def score(self, keep_float: Iterable[str]) -> Score:
        """Measure the network with the named layers in float."""
        with self._engine(keep_float) as engine:
            quality = self._quality_of(engine)
            drop = None if self._truth is None else self._source_map - self._truth.map_of(engine)
        margin = quality - BUDGET if drop is None else self._plan.max_drop - drop
        return Score(quality, drop, margin)

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
        return measure(engine.head, answers(engine, self._samples)).quality

    def _engine(self, keep_float: Iterable[str]) -> AbstractContextManager[Engine]:
        graph = int8_graph(self._prepared.graph, self._ranges, self._encoding, tuple(keep_float))
        return candidate(self._plan, self._prepared, graph, "int8", self._encoding)
