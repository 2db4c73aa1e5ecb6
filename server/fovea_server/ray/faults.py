"""Deployments whose replicas do not start, as Serve's controller tells it."""

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
    """Say why an application that Serve calls failed stays so; empty where Serve mends it.

    A replica that dies, as with its node, fails its health check, and Serve starts another, but
    for an update that it has stopped (DEPLOY_FAILED).
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
    """Return the error of a replica of a deployment, out of the traceback that Ray has of it."""
    own: list[str] = _OWN_ERROR.findall(found.message)
    return own[-1].removeprefix(f"{name}: ") if own else " ".join(found.message.split())


def failed_starts(found: ApplicationStatusOverview) -> dict[str, str]:
    """Map each deployment that has no replica, because none could start, to the reason.

    One whose replicas were lost with their node is not among them: Ray starts others.
    """
    return {
        name: _reason(name, each)
        for name, each in found.deployments.items()
        if each.status_trigger.value == "REPLICA_STARTUP_FAILED" and not _has(each, *_RUNNING)
    }


def _has(found: DeploymentStatusOverview, *states: str) -> bool:
    # Strings at run time, although Ray types them as members of an enum.
    counts = cast("Mapping[str, int]", found.replica_states)
    return any(counts.get(state) for state in states)


async def watch(registry: Registry, forwarders: Mapping[str, Forwarder]) -> None:
    """Ask Serve's controller every few seconds which models cannot start, and mark them.

    While it does not answer, its last answer holds.
    """
    warned = False
    while True:
        try:
            status = await asyncio.to_thread(serve.status)
            mark(failed_starts(status.applications[MODELS]), registry, forwarders)
            warned = False
        except Exception:
            if not warned:
                log.exception("Ray Serve did not report which models start; retrying")
            warned = True
        await asyncio.sleep(_INTERVAL_S)


def mark(found: Mapping[str, str], registry: Registry, forwarders: Mapping[str, Forwarder]) -> None:
    """Give every model its fault, or none: it is not ready, and its requests are refused."""
    for name, forwarder in forwarders.items():
        forwarder.fault = found.get(name, "")
    for model in registry:
        model.fault = found.get(model.name, "")
