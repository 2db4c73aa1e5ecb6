"""Measures the engines of one build on labelled images."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import onnx

from fovea_engines.build.assemble import reference
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.engine import Engine
from fovea_engines.evaluation.labels import Labels, measure
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import AnyAccuracy
from fovea_preprocess.errors import NotFinite


@dataclass(frozen=True, eq=False)
class LabelledEvaluation:
    """Measures engines and graphs of one model on images with labels in its class ids."""

    plan: BuildPlan
    prepared: PreparedModel
    dataset: Labels
    progress: Progress

    @cached_property
    def source(self) -> AnyAccuracy:
        """Return the accuracy of the source in float32."""
        return self.measure_graph("fp32", self.prepared.graph)

    def measure_graph(self, name: str, graph: onnx.ModelProto) -> AnyAccuracy:
        """Return the accuracy of a graph on ONNX Runtime."""
        with reference(self.plan, self.prepared, graph, "fp32") as engine:
            return self.measure_engine(name, engine)

    def measure_engine(self, name: str, engine: Engine) -> AnyAccuracy:
        """Return the accuracy of an engine, and report its figure under `name`."""
        accuracy = measure(engine, self.dataset, self.progress)
        self.progress.note(f"{accuracy.metric} {accuracy.figure:.3f} in {name}")
        return accuracy

    def measure_figure(self, engine: Engine) -> float:
        """Return the figure that decides about a candidate, without reporting it.

        The figure is 0 if the candidate computes NaN or infinity, because another candidate may be
        good.
        """
        with suppress(NotFinite):
            return measure(engine, self.dataset, Progress()).figure
        return 0.0
