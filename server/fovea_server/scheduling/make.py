"""Builds the scheduler that a model's configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from fovea_engines.repository.ensemble import EnsembleStep
from fovea_engines.session import Session
from fovea_server.scheduling.base import HasScheduler, Scheduler
from fovea_server.scheduling.batch import BatchScheduler
from fovea_server.scheduling.batching import Batching, DynamicBatching, OneByOne
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.scheduling.cached import CachedScheduler
from fovea_server.scheduling.contract import Contract
from fovea_server.scheduling.controls import Controls, States
from fovea_server.scheduling.ensemble import EnsembleScheduler
from fovea_server.scheduling.priority_queue import PriorityQueue, QueuePolicy
from fovea_server.scheduling.sequence import SequenceScheduler
from fovea_server.scheduling.wrapper import OrderedScheduler
from fovea_server.statistics.model import ModelStatistics
from fovea_server.tensors.signature import ModelSignature

# Idle time of a sequence, in microseconds, where the model sets none; Triton's default.
_IDLE_US = 1_000_000


def make_scheduler(
    *,
    name: str,
    version: int,
    config: Any,
    session: Session | None,
    statistics: ModelStatistics,
    cache: ResponseCache | None,
    find: Callable[[str, int | None], HasScheduler],
) -> Scheduler:
    """Build the scheduler of a model version.

    Args:
        name: of the model.
        version: of the model.
        config: the complete `ModelConfig` message.
        session: None for an ensemble.
        statistics: counts requests and executions.
        cache: None where the server keeps none.
        find: looks a model up; for a version of None, the one that its policy prefers.

    Raises:
        UnsupportedModel: the configuration asks for something that is not supported.
    """
    contract = Contract(name, version, ModelSignature.of(config))
    if session is None:
        steps = tuple(map(EnsembleStep.of, config.ensemble_scheduling.step))
        inputs = [tensor.name for tensor in config.input]
        made: Scheduler = EnsembleScheduler(contract, inputs, steps, statistics, find)
    else:
        made = _wrapped(
            BatchScheduler(
                contract,
                session,
                statistics,
                waiting=_priority_queue(config.dynamic_batching),
                batching=_batching(config),
                side_by_side=_side_by_side(config, session),
            ),
            config,
        )
    # The answers of a sequence depend on more than one request.
    cacheable = config.response_cache.enable and not config.HasField("sequence_batching")
    if cache is not None and cacheable:
        made = CachedScheduler(made, contract, cache, statistics)
    return made


def _wrapped(batches: BatchScheduler, config: Any) -> Scheduler:
    """Wrap the batches as the configuration says."""
    sequences, ordered = config.sequence_batching, config.dynamic_batching.preserve_ordering
    made: Scheduler = batches
    if config.HasField("sequence_batching"):
        batched = config.max_batch_size > 0
        made = SequenceScheduler(
            batches,
            Controls(sequences, batched=batched),
            States(sequences, batched=batched),
            sequences.max_sequence_idle_microseconds or _IDLE_US,
        )
    if ordered or sequences.oldest.preserve_ordering:
        made = OrderedScheduler(made)
    return made


def _batching(config: Any) -> Batching:
    rows = config.max_batch_size
    if rows > 1 and config.HasField("dynamic_batching"):
        asked = config.dynamic_batching
        delay_us = asked.max_queue_delay_microseconds
        return DynamicBatching(rows, asked.preferred_batch_size, delay_us)
    if rows > 1 and config.HasField("sequence_batching"):
        if config.sequence_batching.HasField("oldest"):
            oldest = config.sequence_batching.oldest
            delay_us = oldest.max_queue_delay_microseconds
            return DynamicBatching(rows, oldest.preferred_batch_size, delay_us)
        direct = config.sequence_batching.direct
        full_enough = ceil(rows * direct.minimum_slot_utilization)
        delay_us = direct.max_queue_delay_microseconds
        return DynamicBatching(rows, range(max(1, full_enough), rows + 1), delay_us)
    return OneByOne()


def _priority_queue(dynamic: Any) -> PriorityQueue:
    queues = dynamic.priority_queue_policy
    policies = {level: QueuePolicy.of(policy) for level, policy in queues.items()}
    default = QueuePolicy.of(dynamic.default_queue_policy)
    return PriorityQueue(
        lambda level: policies.get(level, default),
        dynamic.priority_levels,
        dynamic.default_priority_level,
    )


def _side_by_side(config: Any, session: Session) -> int:
    """Count the executions at a time: enough for the instances, and to keep the device busy.

    Engines have no state, so one instance (Triton's default too) may run several at a time.
    """
    instances: int = sum(
        group.count * max(1, len(group.gpus))
        for group in config.instance_group
        if not group.passive
    )
    return max(instances, session.concurrency)
