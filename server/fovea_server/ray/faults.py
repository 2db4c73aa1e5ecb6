"""Finds deployments whose replicas do not start, in the status that Serve's controller reports."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ray import serve
from ray.serve.schema import ApplicationStatusOverview, DeploymentStatusOverview

from fovea_server.ray.config import MODELS

if TYPE_CHECKING:
    from fovea_server.models.registry import Registry
    from fovea_server.ray.forwarder import Forwarder

log = logging.getLogger(__name__)

_INTERVAL_S = 5.0
_RUNNING = ("RUNNING", "PENDING_MIGRATION")

_OWN_ERROR = re.compile(r"^fovea_preprocess\.errors\.\w+: (.*)$", re.MULTILINE)


def lasting_failures(found: ApplicationStatusOverview) -> list[str]:
    """Return the reasons why an application has failed, without failures that Serve repairs.

    If a replica dies, for example with its node, its health check fails and Serve starts another
    replica. After a failed update (DEPLOY_FAILED), Serve does not start another replica.
    """
    failed = {
        name: each
        for name, each in sorted(found.deployments.items())
        if each.status.value in ("DEPLOY_FAILED", "UNHEALTHY")
    }
    if not failed:
        return [f"the deployment failed: {found.message.strip()}"]
    return [
        f"{name}: {_reason(name, each)}"
        for name, each in failed.items()
        if (each.status.value, each.status_trigger.value) != ("UNHEALTHY", "HEALTH_CHECK_FAILED")
    ]


def _reason(name: str, found: DeploymentStatusOverview) -> str:
    """Return the error of a deployment's replica, taken from Ray's traceback."""
    own: list[str] = _OWN_ERROR.findall(found.message)
    return own[-1].removeprefix(f"{name}: ") if own else " ".join(found.message.split())


def failed_starts(found: ApplicationStatusOverview) -> dict[str, str]:
    """Return the reason for each deployment without a replica, if its replicas could not start.

    Deployments whose replicas were lost with their node are not included, because Ray starts these
    replicas again.
    """
    return {
        name: _reason(name, each)
        for name, each in found.deployments.items()
        if each.status_trigger.value == "REPLICA_STARTUP_FAILED" and not _has(each, *_RUNNING)
    }


def _has(found: DeploymentStatusOverview, *states: str) -> bool:
    # The keys are strings at run time, although Ray's annotation says members of an enum.
    counts = cast("Mapping[str, int]", found.replica_states)
    return any(counts.get(state) for state in states)


async def watch(registry: Registry, forwarders: Mapping[str, Forwarder]) -> None:
    """Check regularly which models cannot start, and store the reasons with `mark`.

    If Serve's controller does not answer, the last reasons stay.
    """
    warned = False
    while True:
        try:
            status = await asyncio.to_thread(serve.status)
            mark(failed_starts(status.applications[MODELS]), registry, forwarders)
            warned = False
        except Exception:
            if not warned:
                log.exception("Ray Serve did not report the status of the models; retrying")
            warned = True
        await asyncio.sleep(_INTERVAL_S)


def mark(found: Mapping[str, str], registry: Registry, forwarders: Mapping[str, Forwarder]) -> None:
    """Set or clear the fault of each model. A model with a fault rejects requests."""
    for name, forwarder in forwarders.items():
        forwarder.fault = found.get(name, "")
    for model in registry:
        model.fault = found.get(model.name, "")
