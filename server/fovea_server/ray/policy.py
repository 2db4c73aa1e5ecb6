"""Scaling policies. Serve's controller calls these functions."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.serve.config import AutoscalingContext

UNDER_WAY = "under_way"
"""Name of the metric that replicas report for scaling: the mean number of concurrent requests."""

_LOOK_S = 2.0

Decision = tuple[float, dict[str, Any]]


def alive_nodes() -> list[dict[str, Any]]:
    """Return the nodes of the cluster in Ray's form. Without a connection, return an empty list."""
    if not ray.is_initialized():
        return []
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def scale_by_requests(context: AutoscalingContext) -> Decision:
    """Return the wanted number of replicas of a model.

    It is the number of concurrent requests divided by `target_ongoing_requests`. Requests do not
    pass through Serve, so the replicas report their numbers of requests.
    """
    reported = (context.aggregated_metrics or {}).get(UNDER_WAY, {})
    config = context.config
    if not reported or config is None:
        # A replica that has just started has not reported a number yet.
        return context.target_num_replicas, {}
    return sum(reported.values()) / config.get_target_ongoing_requests(), {}


def scale_by_nodes(context: AutoscalingContext) -> Decision:
    """Return the wanted number of Ray fronts: one per node."""
    looked, nodes = context.policy_state.get("nodes", (0.0, context.target_num_replicas))
    if time.monotonic() - looked > _LOOK_S:
        looked, nodes = time.monotonic(), len(alive_nodes())
    return nodes, {"nodes": (looked, nodes)}
