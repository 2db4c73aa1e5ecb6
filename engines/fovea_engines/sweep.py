"""Which blocks of a model are worth keeping in float."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fovea_engines.agreement.measure import measure
from fovea_engines.agreement.samples import answers, read_samples
from fovea_engines.agreement.sensitivity import Sensitivity, keep_until, rank
from fovea_engines.assemble import trial
from fovea_engines.calibration.ranges import Ranges
from fovea_engines.plan import BuildPlan
from fovea_engines.precision.blocks import blocks
from fovea_engines.precision.encoding import Encoding
from fovea_engines.precision.qdq import quantise
from fovea_engines.prepare import PreparedModel
from fovea_engines.progress import Progress

BUDGET = 0.9
"""Agreement that is good enough: no block need stay in float for more."""

# Pictures a block is judged on: enough for a hundred detections, few enough for a second each.
_IMAGES = 24


@dataclass(frozen=True, slots=True)
class Sweep:
    """What it brings to keep blocks of a network in float.

    Attributes:
        base: agreement with every block in INT8.
        ranking: every block by itself, most gain first.
        kept: those that bring the agreement to the budget, or as near as they can.
        reached: agreement with these in float.
    """

    base: float
    ranking: tuple[Sensitivity, ...]
    kept: tuple[Sensitivity, ...]
    reached: float


class Trials:
    """INT8 networks of one model that are built, judged and thrown away.

    They are judged on the backend that will serve: a correct graph is not enough.
    """

    def __init__(self, plan: BuildPlan, prepared: PreparedModel, ranges: Ranges) -> None:
        self._plan = plan
        self._prepared = prepared
        self._ranges = ranges
        outputs = [output.name for output in prepared.outputs]
        self._samples = list(
            read_samples(plan.source, prepared.preprocess, outputs, plan.pictures, _IMAGES)
        )

    def quality(self, keep_float: Iterable[str]) -> float:
        """Agreement (0 to 1) of the network in which layers of these names stay float."""
        graph = quantise(self._prepared.graph, self._ranges, Encoding.UNSIGNED, tuple(keep_float))
        with trial(self._plan, self._prepared, graph, "int8") as engine:
            return measure(engine.head, answers(engine, self._samples)).quality

    def sweep(self, layers: Sequence[str], base: float, progress: Progress) -> Sweep:
        """Try each block of these layers in float, and find those that are worth it."""
        ranking = rank(blocks(layers), base, self.quality, progress)
        kept, reached = keep_until(BUDGET, base, ranking, self.quality)
        return Sweep(base, tuple(ranking), tuple(kept), reached)
