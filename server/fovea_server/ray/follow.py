"""Follows which replicas run: Serve's controller tells it as soon as it knows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import ray

# What Ray's own routers use; its public API tells nobody of a change.
from ray.serve._private.common import DeploymentID, DeploymentTargetInfo
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve._private.long_poll import LongPollClient, LongPollNamespace

log = logging.getLogger(__name__)

Replicas = Mapping[str, Mapping[str, Any]]
"""The replicas that run, by their id, and what each says of itself (`record_replica_metadata`)."""

_TARGETS = LongPollNamespace.DEPLOYMENT_TARGETS
_LOOK_S = 2.0


async def follow(application: str, changed: Mapping[str, Callable[[Replicas], None]]) -> None:
    """Call the function of a deployment on this event loop, now and whenever its replicas change.

    A replica that leaves is told as gone before it stops. It never ends; while the controller is
    away, the replicas are those that it told last.
    """
    keys: dict[Any, Callable[[Any], None]] = {
        (_TARGETS, DeploymentID(name, application)): partial(_tell, call)
        for name, call in changed.items()
    }
    loop = asyncio.get_running_loop()
    while True:
        try:
            controller = await asyncio.to_thread(
                ray.get_actor, SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE
            )
        except ValueError:
            await asyncio.sleep(_LOOK_S)
            continue
        client = LongPollClient(controller, keys, call_in_event_loop=loop, client_id="fovea")
        try:
            while client.is_running:
                await asyncio.sleep(_LOOK_S)
        finally:
            client.stop()
        log.warning("Serve's controller does not answer; it is asked again")


def _tell(call: Callable[[Replicas], None], found: DeploymentTargetInfo) -> None:
    replicas = {
        each.replica_id.unique_id: each.replica_metadata
        for each in found.running_replicas
        if each.replica_metadata
    }
    try:
        call(replicas)
    except Exception:
        # Ray would tell nothing any more.
        log.exception("a change of replicas could not be taken over")
