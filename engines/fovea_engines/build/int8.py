"""A model in INT8, and how good one of its graphs is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import onnx

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.assemble import candidate
from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.engine import Engine
from fovea_engines.evaluation.agreement.measure import measure
from fovea_engines.evaluation.reference import answers, read_samples
from fovea_engines.heads.recognise import open_head
from fovea_engines.repository.figures import Calibration

BUDGET = 0.9
"""Agreement that is good enough: no block need stay in float for more."""

Encode = Callable[[Encoding], onnx.ModelProto]
"""Writes a graph in an encoding."""

Truth = LabelledEvaluation | None
"""Labelled images that an engine must satisfy beside the agreement, if there are any."""

# Images per block: enough for a hundred detections, few enough for a second each.
_IMAGES = 24


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


@dataclass(frozen=True, slots=True, eq=False)
class Int8:
    """A model in INT8.

    Attributes:
        encode: writes its graph in an encoding.
        calibration: the entry of the card; None of a model that its exporter quantised.
        ranking: blocks by their gain, largest first; empty without a search.
        files: what the folder of the version keeps of it.
    """

    encode: Encode
    calibration: Calibration | None = None
    ranking: Sequence[Sensitivity] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


class Judge:
    """Measures temporary INT8 graphs of one model.

    They run as `candidate` says: on the serving backend if possible, because a correct graph is
    not enough. Without labelled images (`truth`) the agreement decides.
    """

    def __init__(self, plan: BuildPlan, prepared: PreparedModel, truth: Truth = None) -> None:
        self._plan, self._prepared, self._truth = plan, prepared, truth
        # Measured here, so that it is a phase by itself and not part of a candidate's.
        self._source_figure = 0.0 if truth is None else truth.source.figure
        outputs = [output.name for output in prepared.outputs]
        self._samples = list(
            read_samples(
                prepared.choose_reference(plan),
                prepared.preprocess.largest,
                outputs,
                plan.check_images,
                _IMAGES,
                head=open_head(prepared.head, prepared.inputs),
            )
        )

    def agreement(self, graph: onnx.ModelProto, encoding: Encoding) -> float:
        """Measure the agreement of a graph with the source, 0 to 1."""
        with self._engine(graph, encoding) as engine:
            return self._measure_agreement(engine)

    def score(self, graph: onnx.ModelProto, encoding: Encoding) -> Score:
        """Measure all that decides of a graph."""
        with self._engine(graph, encoding) as engine:
            quality = self._measure_agreement(engine)
            drop = metric = None
            if self._truth is not None:
                metric = self._truth.source.metric
                drop = self._source_figure - self._truth.measure_figure(engine)
        margin = quality - BUDGET if drop is None else self._plan.max_drop - drop
        return Score(quality, drop, margin, metric)

    def _measure_agreement(self, engine: Engine) -> float:
        return measure(engine.head, answers(engine, self._samples)).least

    def _engine(self, graph: onnx.ModelProto, encoding: Encoding) -> AbstractContextManager[Engine]:
        return candidate(self._plan, self._prepared, graph, "int8", encoding)
