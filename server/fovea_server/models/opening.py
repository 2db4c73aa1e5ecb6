"""Opens the engine and pipeline of a version, by its configuration and the settings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from fovea_engines.backends.registry import BACKENDS
from fovea_engines.build.plan import MAX_BATCH
from fovea_engines.device import gpu_here, processor_name
from fovea_engines.engine import Engine
from fovea_engines.triton_engine import PlainChoice
from fovea_preprocess.errors import InvalidModel
from fovea_preprocess.image import ImageLimits
from fovea_server.images.pipeline import Pipeline
from fovea_server.models.config.config import ModelConfig
from fovea_server.models.config.inside import inside
from fovea_server.settings import Settings
from fovea_server.statistics.model import ModelStatistics

log = logging.getLogger(__name__)


def open_engine(folder: Path, config: ModelConfig, settings: Settings) -> Engine:
    """Open a version folder's engine.

    Raises:
        NotFound, InvalidModel, BackendUnavailable: as `Engine.open`.
    """
    message = config.message
    file = _file(message)
    if file:
        inside(folder, file)
    choice = PlainChoice(file, message.backend, _max_batch(config, file, settings))
    engine = Engine.open(folder, choice, threads=settings.threads)
    try:
        _check_batch(engine, message.max_batch_size)
    except BaseException:
        engine.close()
        raise
    if engine.card.saturates_here:
        log.warning(
            "model %s has INT8 weights of 8 bits, and this CPU (%s, without VNNI) overflows with "
            "them, so its results are wrong: build it again on this machine, which takes 7 bits",
            engine.card.name,
            processor_name(),
        )
    return engine


def open_pipeline(
    engine: Engine, config: ModelConfig, settings: Settings, statistics: ModelStatistics
) -> Pipeline:
    """Start the pipeline, which owns the engine."""
    delay_s = config.max_queue_delay_s
    return Pipeline(
        engine,
        limits=ImageLimits(
            max_bytes=settings.max_image_bytes,
            max_pixels=int(settings.max_megapixels * 1e6),
        ),
        max_queue=settings.max_queue,
        max_queue_delay_s=settings.max_queue_delay_ms / 1e3 if delay_s is None else delay_s,
        statistics=statistics,
    )


def _file(message: Any) -> str:
    """Choose the engine file that the configuration names for this machine; "" for none."""
    gpu = gpu_here() if message.cc_model_filenames else None
    if gpu is not None:
        dotted = f"{gpu.capability[:-1]}.{gpu.capability[-1]}"
        if (special := message.cc_model_filenames.get(dotted)) is not None:
            return str(special)
    return str(message.default_model_filename)


def _max_batch(config: ModelConfig, file: str, settings: Settings) -> int:
    """Choose the batch size of an engine without a card: as configured, or Triton's default."""
    said: int = config.message.max_batch_size
    if said or config.has_tensors or settings.disable_auto_complete_config:
        return said
    name = config.message.backend
    chosen = (one for one in BACKENDS.values() if name == one.name or file.endswith(one.suffixes))
    # They take the batches that they were built for.
    built = any(one.takes_builder for one in chosen)
    return 1 if built else settings.default_max_batch_size


def _check_batch(engine: Engine, said: int) -> None:
    rows, built = engine.session.max_batch, engine.card.created is not None
    # Buffers for images hold whole batches.
    if (rows > MAX_BATCH and engine.preprocessor is not None) or (built and rows < 1):
        raise InvalidModel(
            f"its max_batch is {rows}, and must be from 1 to {MAX_BATCH}: build the engine again, "
            "or correct max_batch_size in config.pbtxt where it has no card.json"
        )
    if built and said > rows:
        raise InvalidModel(
            f"max_batch_size is {said} in config.pbtxt, and the engine takes {rows} at most: lower "
            "it, or build the engine again with a larger --max-batch"
        )
