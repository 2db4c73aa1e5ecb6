"""Serve's controller asks here how many replicas there should be."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.serve.config import AutoscalingContext

UNDER_WAY = "under_way"
"""The metric of a replica: requests that it had at a time, in the mean."""

_LOOK_S = 2.0

Decision = tuple[float, dict[str, Any]]


def alive_nodes() -> list[dict[str, Any]]:
    """List the nodes of the cluster, as Ray describes them; none where it is not connected."""
    if not ray.is_initialized():
        return []
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def scale_by_requests(context: AutoscalingContext) -> Decision:
    """Want a replica for each `target_ongoing_requests` of the model's requests.

    Requests do not pass through Serve, so the replicas report how many they have.
    """
    reported = (context.aggregated_metrics or {}).get(UNDER_WAY, {})
    config = context.config
    if not reported or config is None:
        # One that has just started has reported nothing yet.
        return context.target_num_replicas, {}
    return sum(reported.values()) / config.get_target_ongoing_requests(), {}


def scale_by_nodes(context: AutoscalingContext) -> Decision:
    """Want a front on every node."""
    looked, nodes = context.policy_state.get("nodes", (0.0, context.target_num_replicas))
    if time.monotonic() - looked > _LOOK_S:
        looked, nodes = time.monotonic(), len(alive_nodes())
    return nodes, {"nodes": (looked, nodes)}
