"""Measures the engines of one build on labelled images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import onnx

from fovea_engines.build.assemble import reference
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.engine import Engine
from fovea_engines.evaluate.accuracy.dataset import Dataset
from fovea_engines.evaluate.accuracy.evaluate import evaluate, in_process
from fovea_engines.progress import Progress
from fovea_engines.repository.figures import Accuracy


@dataclass(frozen=True, eq=False)
class LabelledEvaluation:
    """Measures engines and graphs of one model on images labelled with its class ids."""

    plan: BuildPlan
    prepared: PreparedModel
    dataset: Dataset
    progress: Progress

    @cached_property
    def source(self) -> Accuracy:
        """Measure the source in float32."""
        return self.of_graph("fp32", self.prepared.graph)

    def of_graph(self, name: str, graph: onnx.ModelProto) -> Accuracy:
        """Measure a graph on ONNX Runtime."""
        with reference(self.plan, self.prepared, graph, "fp32") as engine:
            return self.of_engine(name, engine)

    def of_engine(self, name: str, engine: Engine) -> Accuracy:
        """Measure an engine, and report the figure under `name`."""
        accuracy = evaluate(in_process(engine), self.dataset, self.progress)
        self.progress.note(f"mAP50-95 {accuracy.map50_95:.3f} in {name}")
        return accuracy

    def map_of(self, engine: Engine) -> float:
        """Measure the mAP50-95 of a candidate without reporting it."""
        return evaluate(in_process(engine), self.dataset).map50_95
