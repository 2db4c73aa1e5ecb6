"""Makes the configuration of folders of the repository that are one model made of several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson

from fovea_engines.engine import Engine
from fovea_engines.repository.config_pbtxt import CONFIG_FILE
from fovea_engines.repository.model_config import ModelConfig, ModelParameter
from fovea_engines.repository.model_config_scheduling import EnsembleStep, ModelEnsembling
from fovea_preprocess.errors import InvalidModel
from fovea_server.pipelines.recipe import PIPELINE_FILE, Pipeline
from fovea_server.tensors.image_outputs import image_outputs

PLATFORM = "fovea_composite"
"""Of the configuration of such a model; its steps are the models that it runs."""


def composite_config(folder: Path, name: str) -> ModelConfig:
    """Make the configuration of a folder that is a pipeline; raises as `Pipeline.read`."""
    if (folder / CONFIG_FILE).exists():
        raise InvalidModel(f"{folder / CONFIG_FILE} is beside {PIPELINE_FILE}: remove one of them")
    models = Pipeline.read(folder).models
    steps = tuple(EnsembleStep(model, model_version=-1) for model in models)
    return ModelConfig(name=name, platform=PLATFORM, ensemble_scheduling=ModelEnsembling(steps))


def completed(config: ModelConfig, first: ModelConfig, engine: Engine | None) -> ModelConfig:
    """Fill in what the first model says, whose input takes the images."""
    parameters = {}
    if engine is not None and engine.head is not None:
        listed = orjson.dumps(image_outputs(engine.head, composite=True)).decode()
        parameters = {"image_outputs": ModelParameter(listed)}
    rows, taken = first.max_batch_size, first.input[:1]
    return replace(config, max_batch_size=rows, input=taken, parameters=parameters)
