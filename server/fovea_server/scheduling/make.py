"""The scheduler that a model's configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fovea_engines.backends.base import Session
from fovea_engines.triton_messages import model_config_messages
from fovea_server.scheduling.base import HasScheduler, Scheduler
from fovea_server.scheduling.batch import BatchScheduler
from fovea_server.scheduling.batching import Batching, DynamicBatching, OneByOne
from fovea_server.scheduling.contract import Contract
from fovea_server.scheduling.waiting import QueuePolicy, WaitingRoom
from fovea_server.settings import Settings
from fovea_server.statistics import ModelStatistics
from fovea_server.v2.signature import Signature


def make_scheduler(
    *,
    name: str,
    version: int,
    config: Any,
    session: Session | None,
    settings: Settings,
    statistics: ModelStatistics,
    cache: Any,
    find: Callable[[str, int | None], HasScheduler],
) -> Scheduler:
    """Read the configuration, make what it says.

    Args:
        name: of the model.
        version: of it.
        config: its complete `ModelConfig` message.
        session: its engine; None for an ensemble, which has none.
        settings: of the server.
        statistics: what is counted.
        cache: answers that are kept; None where the server keeps none.
        find: gives a model, and the version that its policy prefers for None.
    """
    contract = Contract(name, version, Signature.of(config))
    assert session is not None
    return BatchScheduler(
        contract,
        session,
        statistics,
        waiting=_waiting_room(config.dynamic_batching, settings.max_queue),
        batching=_batching(config),
        side_by_side=_side_by_side(config, session),
    )


def _batching(config: Any) -> Batching:
    if not config.HasField("dynamic_batching") or config.max_batch_size < 2:
        return OneByOne()
    dynamic = config.dynamic_batching
    return DynamicBatching(
        config.max_batch_size,
        dynamic.preferred_batch_size,
        dynamic.max_queue_delay_microseconds,
    )


def _waiting_room(dynamic: Any, limit: int) -> WaitingRoom:
    policies = {level: _policy(policy) for level, policy in dynamic.priority_queue_policy.items()}
    default = _policy(dynamic.default_queue_policy)
    return WaitingRoom(
        limit,
        lambda level: policies.get(level, default),
        dynamic.priority_levels,
        dynamic.default_priority_level,
    )


def _policy(message: Any) -> QueuePolicy:
    kind = model_config_messages().ModelQueuePolicy
    return QueuePolicy(
        message.max_queue_size,
        message.default_timeout_microseconds,
        message.timeout_action == kind.REJECT,
        message.allow_timeout_override,
    )


def _side_by_side(config: Any, session: Session) -> int:
    """Executions at a time.

    An engine here has no state, so that one instance, which is also what Triton writes where
    nothing is said, may run as often side by side as keeps the device busy.
    """
    instances: int = sum(group.count for group in config.instance_group)
    return instances if instances > 1 else session.concurrency
