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
    """Measures the accuracy of a model's engines and graphs on labelled images.

    Attributes:
        plan: options of the build.
        prepared: prepared source model.
        dataset: labelled images. The labels use the model's class ids.
        progress: object that receives notes with the figures.
    """

    plan: BuildPlan
    prepared: PreparedModel
    dataset: Labels
    progress: Progress

    @cached_property
    def source(self) -> AnyAccuracy:
        """Return the accuracy of the source model in float32.

        It is measured at the first access.
        """
        return self.measure_graph("fp32", self.prepared.graph)

    def measure_graph(self, name: str, graph: onnx.ModelProto) -> AnyAccuracy:
        """Run a graph on ONNX Runtime, and return its accuracy."""
        with reference(self.plan, self.prepared, graph, "fp32") as engine:
            return self.measure_engine(name, engine)

    def measure_engine(self, name: str, engine: Engine) -> AnyAccuracy:
        """Return the accuracy of an engine, and report the figure with `name` to the progress."""
        accuracy = measure(engine, self.dataset, self.progress)
        self.progress.note(f"{accuracy.metric} {accuracy.figure:.3f} in {name}")
        return accuracy

    def measure_figure(self, engine: Engine) -> float:
        """Return only the figure of an engine's accuracy (0 to 1), without reporting it.

        If the engine computes NaN or infinity, return 0 instead of raising NotFinite, so that a
        search can continue with the next candidate.
        """
        with suppress(NotFinite):
            return measure(engine, self.dataset, Progress()).figure
        return 0.0
