"""Describes a model in INT8, and measures the quality of its graphs."""

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
"""Agreement, 0 to 1, that is good enough to stop the search for blocks to keep in float."""

Encode = Callable[[Encoding], onnx.ModelProto]
"""Function that returns the graph with an integer encoding."""

Truth = LabelledEvaluation | None
"""Labelled images whose accuracy an engine must keep besides the agreement, if there are any."""

# Number of images to measure a block: enough for a hundred detections, few enough to take a second
# per block.
_IMAGES = 24


@dataclass(frozen=True, slots=True)
class Score:
    """Quality of one INT8 graph.

    Attributes:
        quality: agreement with the source, 0 to 1.
        drop: loss of accuracy compared with the source; None without labels.
        margin: how much the deciding figure exceeds its limit: the accuracy if there are labels,
            otherwise the agreement. A negative margin means rejection.
        metric: name of the accuracy; None without labels.
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
        block: name of the block.
        layers: names of its layers.
        quality: agreement with the source if only this block is float. If no single block improves
            anything: the agreement if only this block is INT8.
        gain: `quality` minus the agreement without float blocks; or in the second case `quality` -
            1.
    """

    block: str
    layers: tuple[str, ...]
    quality: float
    gain: float


@dataclass(frozen=True, slots=True, eq=False)
class Int8:
    """A model in INT8.

    Attributes:
        encode: returns its graph with an integer encoding.
        calibration: calibration for the card; None if the exporter quantised the model.
        ranking: blocks by their gain, largest first; empty without a search.
        files: name -> content of the files to store in the version's directory.
    """

    encode: Encode
    calibration: Calibration | None = None
    ranking: Sequence[Sensitivity] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


class Judge:
    """Measures temporary INT8 graphs of one model.

    The graphs run as in `candidate`: on the serving backend if possible, because that backend may
    compute a correct graph incorrectly. Without labelled images (`truth`) the agreement decides.
    """

    def __init__(self, plan: BuildPlan, prepared: PreparedModel, truth: Truth = None) -> None:
        self._plan, self._prepared, self._truth = plan, prepared, truth
        # Measured here, so that this time is a phase of its own.
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
        """Return the agreement of a graph with the source, 0 to 1."""
        with self._engine(graph, encoding) as engine:
            return self._measure_agreement(engine)

    def score(self, graph: onnx.ModelProto, encoding: Encoding) -> Score:
        """Return the agreement, and with labels the accuracy, of a graph."""
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
