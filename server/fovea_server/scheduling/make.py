"""Builds the scheduler for the configuration of a model."""

from __future__ import annotations

from math import ceil

from fovea_engines.device import usable_cores
from fovea_engines.repository.model_config import ModelConfig
from fovea_engines.repository.model_config_scheduling import ModelDynamicBatching, StrategyDirect
from fovea_engines.session import Session
from fovea_server.observability.model_statistics import ModelStatistics
from fovea_server.scheduling.base import OrderedScheduler, Scheduler
from fovea_server.scheduling.batching import DynamicBatching
from fovea_server.scheduling.cache import CachedScheduler, ResponseCache
from fovea_server.scheduling.ensemble import EnsembleScheduler, FindScheduler
from fovea_server.scheduling.job import ImageSource, TensorSource
from fovea_server.scheduling.job_queue import JobQueue
from fovea_server.scheduling.model_io import ModelIO
from fovea_server.scheduling.queue_scheduler import QueueScheduler
from fovea_server.scheduling.sequence import SequenceScheduler
from fovea_server.tensors.signature import ImageSides, ModelSignature


def make_scheduler(
    *,
    version: int,
    config: ModelConfig,
    session: Session | None,
    images: ImageSource | None = None,
    max_queue: int,
    decoders: int | None = None,
    statistics: ModelStatistics,
    cache: ResponseCache | None,
    find: FindScheduler,
) -> Scheduler:
    """Build and start the scheduler of a model version.

    Args:
        version: version number of the model.
        config: complete configuration.
        session: session of the engine; None for an ensemble, which has no engine.
        images: makes jobs from images; None for a model that takes no images.
        max_queue: largest number of accepted jobs without a response.
        decoders: number of threads that decode images for an engine on a device other than the CPU;
            by default one for each core.
        statistics: counters of the model version.
        cache: the response cache; None if the server has none.
        find: looks up the schedulers of an ensemble's models.

    Raises:
        UnsupportedModel: no scheduler supports the configuration.
        Unavailable: the threads could not be started.
    """
    specs = () if session is None else (*session.inputs, *session.outputs)
    scalars = {spec.name for spec in specs if not spec.shape}
    signature = ModelSignature.of(config, _sides(images), scalars)
    model_io = ModelIO(config.name, version, signature)
    rows: QueueScheduler | None = None
    if session is None:
        inputs = [tensor.name for tensor in config.input]
        made: Scheduler = EnsembleScheduler(model_io, inputs, config.steps, statistics, find)
    else:
        side_by_side = _side_by_side(config, session)
        policies = config.dynamic_batching or ModelDynamicBatching()
        rows = QueueScheduler(
            model_io,
            JobQueue(policies, limit=max_queue, side_by_side=side_by_side),
            statistics,
            tensors=TensorSource(session, _batching(config)),
            images=images,
            # A device has twice the threads: while one thread decodes the outputs of a batch,
            # another thread waits for the next batch.
            executing=side_by_side * (2 if session.offloads else 1),
            preparing=(decoders or usable_cores()) if images is not None and images.ahead else 0,
            offloads=session.offloads,
        )
        made = _wrap(rows, config)
    # A response within a sequence also depends on earlier requests, so it is not cached.
    if cache is not None and config.response_cache.enable and config.sequence_batching is None:
        made = CachedScheduler(made, model_io, cache, statistics)
    # The threads start last, so that an error above leaves no thread running.
    if rows is not None:
        rows.start()
    return made


def _sides(images: ImageSource | None) -> dict[str, ImageSides]:
    card = None if images is None else images.engine.card
    if card is None or card.preprocess is None or not card.preprocess.step:
        return {}
    return {card.inputs[0].name: ImageSides(card.preprocess.row_shape, card.preprocess.step)}


def _wrap(rows: QueueScheduler, config: ModelConfig) -> Scheduler:
    made: Scheduler = rows
    ordered = config.dynamic_batching is not None and config.dynamic_batching.preserve_ordering
    if (sequences := config.sequence_batching) is not None:
        made = SequenceScheduler(rows, sequences, batched=config.max_batch_size > 0)
        ordered = sequences.oldest is not None and sequences.oldest.preserve_ordering
    return OrderedScheduler(made) if ordered else made


def _batching(config: ModelConfig) -> DynamicBatching:
    rows, sequences = config.max_batch_size, config.sequence_batching
    dynamic = config.dynamic_batching or (None if sequences is None else sequences.oldest)
    if rows <= 1 or (dynamic is None and sequences is None):
        return DynamicBatching(1)
    if dynamic is not None:
        return DynamicBatching(
            rows, dynamic.preferred_batch_size, dynamic.max_queue_delay_microseconds
        )
    direct = (sequences and sequences.direct) or StrategyDirect()
    full_enough = max(1, ceil(rows * direct.minimum_slot_utilization))
    sizes = range(full_enough, rows + 1)
    return DynamicBatching(rows, sizes, direct.max_queue_delay_microseconds)


def _side_by_side(config: ModelConfig, session: Session) -> int:
    """Return the number of parallel executions: at least the configured number of instances.

    Engines have no state, so a single instance (also Triton's default) may run several executions
    at a time, up to the number that the session can use.
    """
    return max(config.instances, session.concurrency)
