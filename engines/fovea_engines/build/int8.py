"""Describes a quantised model, and measures the quality of its INT8 graphs."""

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
"""Agreement with the source (0 to 1) at which the search for blocks to keep in float stops."""

Encode = Callable[[Encoding], onnx.ModelProto]
"""Function that returns the INT8 graph of a model for an integer encoding."""

Truth = LabelledEvaluation | None
"""Evaluation on labelled images; None if the build has no labelled images."""

# Number of images to measure the effect of a block. They usually have a hundred detections, and a
# measurement takes about a second.
_IMAGES = 24


@dataclass(frozen=True, slots=True)
class Score:
    """The quality of one INT8 graph.

    Attributes:
        quality: agreement with the source, 0 to 1.
        drop: accuracy of the source minus accuracy of the graph; None without labelled images.
        margin: with labelled images, the largest accepted drop minus `drop`; otherwise `quality`
            minus `BUDGET`. A negative margin means that the graph is not good enough.
        metric: name of the accuracy's metric; None without labelled images.
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
    """The effect of keeping one block of layers in float.

    Attributes:
        block: name of the block.
        layers: names of the block's layers.
        quality: agreement with the source (0 to 1) if only this block is float. If no single block
            improves the agreement: the agreement if only this block is INT8.
        gain: `quality` minus the agreement without float blocks. If no single block improves the
            agreement: 1 minus `quality`.
    """

    block: str
    layers: tuple[str, ...]
    quality: float
    gain: float


@dataclass(frozen=True, slots=True, eq=False)
class Int8:
    """A model in INT8.

    Attributes:
        encode: function that returns the graph for an integer encoding.
        calibration: description of the calibration for the card; None if the exporter quantised the
            model.
        ranking: blocks, the block with the largest gain first; empty if no search was needed.
        files: name of each file for the version's directory -> its content.
    """

    encode: Encode
    calibration: Calibration | None = None
    ranking: Sequence[Sensitivity] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


class Judge:
    """Measures temporary INT8 graphs of one model.

    The graphs run on the plan's backend if possible (see `candidate`), because this backend may
    compute a correct graph incorrectly. `truth` is the evaluation on labelled images. If it is not
    None, a score also has the loss of accuracy.
    """

    def __init__(self, plan: BuildPlan, prepared: PreparedModel, truth: Truth = None) -> None:
        self._plan, self._prepared, self._truth = plan, prepared, truth
        # Measure the source now, so that its time is not part of the first graph's phase.
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
        """Return the agreement of a graph with the source (0 to 1)."""
        with self._engine(graph, encoding) as engine:
            return self._measure_agreement(engine)

    def score(self, graph: onnx.ModelProto, encoding: Encoding) -> Score:
        """Return the quality of a graph. With labelled images, it includes the accuracy."""
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
