"""A model's configuration: from config.pbtxt, or from a request to load the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fovea_engines.repository.config_pbtxt import (
    Latest,
    ModelConfig,
    ModelOptimizationPolicy,
    ModelVersionPolicy,
    PinnedMemoryBuffer,
)
from fovea_engines.repository.config_scheduling import ModelDynamicBatching, StrategyOldest
from fovea_engines.repository.model_config import CONFIG_FILE, parse_config, read_config
from fovea_preprocess.errors import InvalidModel
from fovea_server.models.config.config_check import check_config

_CONFIGS_FOLDER = "configs"
_IDLE_US = 1_000_000
_Batching = TypeVar("_Batching", ModelDynamicBatching, StrategyOldest)


def load_config(
    folder: Path,
    name: str,
    *,
    override: str | None = None,
    variant: str = "",
    required: bool = False,
) -> ModelConfig:
    """Read and check the configuration of a model; defaults where there is none.

    The file is configs/VARIANT.pbtxt where that exists; the JSON `override` replaces it.

    Raises:
        InvalidModel: it is no model configuration, contradicts itself, or is missing.
    """
    if override is not None:
        config = parse_config(override)
    else:
        path = folder / _CONFIGS_FOLDER / f"{variant}.pbtxt"
        if not variant or not path.is_file():
            path = folder / CONFIG_FILE
        if required and not path.is_file():
            raise InvalidModel(f"{path} is not there, and nothing may be filled in: write it")
        config = read_config(path)
    config = with_defaults(replace(config, name=config.name or name))
    check_config(config, name)
    return config


def with_defaults(config: ModelConfig) -> ModelConfig:
    """Fill in the defaults that do not depend on the engine, as Triton does."""
    rows = config.max_batch_size
    if config.version_policy in (None, ModelVersionPolicy()):
        config = replace(config, version_policy=ModelVersionPolicy(latest=Latest(1)))
    if (batching := config.dynamic_batching) is not None:
        config = replace(config, dynamic_batching=_prefer_full_batches(batching, rows))
    if (sequences := config.sequence_batching) is not None:
        idle_us = sequences.max_sequence_idle_microseconds or _IDLE_US
        oldest = sequences.oldest and _prefer_full_batches(sequences.oldest, rows)
        sequences = replace(sequences, max_sequence_idle_microseconds=idle_us, oldest=oldest)
        config = replace(config, sequence_batching=sequences)
    if config.ensemble_scheduling is None and config.platform != "ensemble":
        known = config.optimization or ModelOptimizationPolicy()
        pinned = PinnedMemoryBuffer(enable=True)
        optimization = ModelOptimizationPolicy(
            known.input_pinned_memory or pinned, known.output_pinned_memory or pinned
        )
        config = replace(config, optimization=optimization)
    return config


def _prefer_full_batches(batching: _Batching, rows: int) -> _Batching:
    if batching.preferred_batch_size or rows <= 0:
        return batching
    return replace(batching, preferred_batch_size=(rows,))
