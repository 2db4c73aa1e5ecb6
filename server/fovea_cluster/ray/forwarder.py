"""Sends requests to the replicas of a model, again where one of them has died."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

from ray.exceptions import (
    ActorUnavailableError,
    NodeDiedError,
    ObjectLostError,
    RayActorError,
    RpcError,
    WorkerCrashedError,
)
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from fovea_cluster.ray.faults import Fault
from fovea_preprocess.errors import ModelNotReady, QueueFull, Unavailable

log = logging.getLogger(__name__)

# The process that had the request is gone, or the node with its answer.
_LOST = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError, RpcError)
# Ray lost sight of the process, which may live: it reports one that has died as such.
_OUT_OF_REACH = (ActorUnavailableError, RpcError)
_TRIES = 8
# A request that kills its replica must not kill them all.
_MOST_DEATHS = 2
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
# For what only informs.
_PATIENCE_S = 5.0
# A waiting request checks this often that its model can still start.
_LOOK_S = 1.0
# Weight of the newest answer in the mean interval, as in the queue of a model.
_SMOOTHING = 0.1


class Forwarder:
    """The way to the replicas of one model; it belongs to an event loop.

    Ray chooses the replica, and lets requests wait while there is none. A request whose replica
    dies is sent again once, because answering it twice changes nothing; not where a replica keeps
    the state of sequences.

    Attributes:
        fault: the error that keeps replicas from starting; None while they can start.
    """

    def __init__(self, name: str, handle: DeploymentHandle[Any], *, keeps_state: bool) -> None:
        self.name = name
        self.fault: Fault | None = None
        self._handle = handle
        self._tries = 1 if keeps_state else _TRIES
        self._under_way = 0
        self._last_answer = self._interval_s = 0.0

    async def ask(self, method: str, *given: object) -> Any:
        """Call a method of a replica.

        Raises:
            QueueFull: every replica has all the requests that it accepts, and so has the queue.
            ModelNotReady: its replicas do not start.
            Unavailable: replicas died under it, as often as it was sent.
        """
        if not self._under_way:
            # Idle time says nothing about speed.
            self._last_answer = time.monotonic()
        self._under_way += 1
        try:
            answer = await self._tried(method, given)
        finally:
            self._under_way -= 1
        now = time.monotonic()
        weight = _SMOOTHING if self._interval_s else 1.0
        self._interval_s += weight * (now - self._last_answer - self._interval_s)
        self._last_answer = now
        return answer

    async def _tried(self, method: str, given: tuple[object, ...]) -> Any:
        pause_s, deaths = _PAUSE_S, 0
        for tries_left in reversed(range(self._tries)):
            try:
                return await self._sent(method, given)
            except _LOST as error:
                deaths += not isinstance(error, _OUT_OF_REACH)
                if not tries_left or deaths == _MOST_DEATHS:
                    raise Unavailable(
                        f"a replica of model '{self.name}' died before the answer was there: "
                        "send the request again, or begin the sequence again"
                    ) from error
                log.warning("model %s: a replica is lost; its request is sent again", self.name)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    async def _sent(self, method: str, given: tuple[object, ...]) -> Any:
        self._check()
        response = getattr(self._handle, method).remote(*given)
        answer = asyncio.ensure_future(response)
        try:
            while not (await asyncio.wait((answer,), timeout=_LOOK_S))[0]:
                self._check(waits=True)
            return answer.result()
        except BackPressureError:
            raise QueueFull(
                f"{self._under_way} requests are under way, and the replicas of model "
                f"'{self.name}' have no room for more (max_queue, max_replicas); send again "
                "after the time in Retry-After",
                retry_after_s=self._under_way * self._interval_s,
            ) from None
        except DeploymentUnavailableError as error:
            raise ModelNotReady(
                f"model '{self.name}': its replicas do not start; `serve status` says why"
            ) from error
        finally:
            # Ray ends it with an error of its own, which nobody reads, or has ended it just now.
            answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            if not answer.done():
                answer.cancel()
                with suppress(Exception):
                    response.cancel()

    def _check(self, *, waits: bool = False) -> None:
        """Raise ModelNotReady if no replica can start, and none that stops has the request."""
        fault = self.fault
        if fault is not None and not (waits and fault.stopping):
            raise ModelNotReady(
                f"model '{self.name}': its replicas do not start: {fault.reason}; once that is "
                "mended, `fovea ray deploy` starts them"
            )

    async def ask_all(self, method: str, *given: object) -> list[Any]:
        """Call a method of every replica that runs; wakes none, and is empty where none answers."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return list(await self._handle.broadcast(method, *given).results_async())
        except (*_LOST, DeploymentUnavailableError, TimeoutError):
            return []
