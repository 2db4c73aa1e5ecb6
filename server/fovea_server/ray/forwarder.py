"""Forwards requests to the replicas of a model, and sends them again if a replica has died."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from fovea_preprocess.errors import ModelNotReady, QueueFull, Unavailable
from fovea_server.ray.link import Link, ReplicaLost

T = TypeVar("T")
log = logging.getLogger(__name__)

# Number of replicas that may die during one request before it fails. The limit prevents one request
# from killing all replicas.
_MAX_DEATHS = 2
# Time in seconds after which a replica that could not be reached is tried again.
_SHUN_S = 1.0
# Time in seconds between two checks of a waiting request, which fails if its model cannot start.
_LOOK_S = 1.0
# Timeout in seconds for calls that only read information.
_PATIENCE_S = 5.0
# Time in seconds that the start of a replica is expected to take. Clients get it as Retry-After.
_WAKING_S = 5.0


class Forwarder:
    """Forwards requests to the replicas of one model. Use it on one event loop only.

    A request goes to the replica with the fewest requests from this Ray front (the server of a
    node). If no replica runs, the request waits. If the replica dies, the request is sent once
    more, because an inference that runs twice has no side effects. If replicas keep the state of
    sequences, it is not sent again.

    Args:
        name: name of the model.
        handle: Serve's handle of the deployment. A call of it makes Serve start a replica.
        keeps_state: True if replicas keep the state of sequences.
        most_waiting: largest number of requests that wait for a replica.
        leaving_s: time in seconds that a removed replica may take for its remaining responses.

    Attributes:
        fault: reason why replicas cannot start; "" if they can.
    """

    def __init__(
        self,
        name: str,
        handle: DeploymentHandle[Any],
        *,
        keeps_state: bool,
        most_waiting: int,
        leaving_s: float,
    ) -> None:
        self.name = name
        self.fault = ""
        self._handle = handle
        self._most_deaths = 1 if keeps_state else _MAX_DEATHS
        self._most_waiting, self._waiting = most_waiting, 0
        self._leaving_s = leaving_s
        self._links: dict[str, Link] = {}
        self._changed = asyncio.Event()
        self._waking: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def update(self, replicas: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the set of running replicas. `replicas` maps IDs to the replicas' metadata."""
        for gone in self._links.keys() - replicas.keys():
            closing = asyncio.create_task(self._close(self._links.pop(gone)))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        for new in replicas.keys() - self._links.keys():
            self._links[new] = Link(replicas[new])
        self._changed.set()
        self._changed = asyncio.Event()

    async def _close(self, link: Link) -> None:
        await asyncio.sleep(self._leaving_s)
        await link.close()

    async def close(self) -> None:
        """Cancel all requests in flight. Call this after the server has ended."""
        for task in (*self._closing, self._waking):
            if task is not None:
                task.cancel()
        for link in self._links.values():
            await link.close()

    async def ask(self, send: Callable[[Link], Awaitable[T]]) -> T:
        """Send a request to a replica with `send`, and return the result.

        `send` raises `ReplicaLost` if the connection breaks.

        Raises:
            QueueFull: too many requests wait for a replica.
            ModelNotReady: the replicas of the model do not start.
            Unavailable: a replica died during each try.
            FoveaError: an error of `send`.
        """
        deaths = 0
        while True:
            link = self._nearest() or await self._arrival()
            link.under_way += 1
            try:
                return await send(link)
            except ReplicaLost as error:
                link.shunned_until = asyncio.get_running_loop().time() + _SHUN_S
                deaths += error.sent
                if deaths == self._most_deaths:
                    raise Unavailable(
                        f"a replica of model '{self.name}' stopped before it sent a response: "
                        "send the request again, or start the sequence again"
                    ) from error
                if error.sent:
                    log.warning("model %s: a replica was lost; retrying the request", self.name)
            finally:
                link.under_way -= 1

    def _nearest(self) -> Link | None:
        """Return the replica with the fewest requests in flight.

        If no replica can be reached, return None.
        """
        now = asyncio.get_running_loop().time()
        there = [link for link in self._links.values() if link.shunned_until <= now]
        return min(there, key=lambda link: (link.under_way, random.random()), default=None)

    async def _arrival(self) -> Link:
        if self._waiting == self._most_waiting:
            raise QueueFull(
                f"{self._waiting} requests already wait for a replica of model '{self.name}', and "
                "the limit (max_queue) is reached: retry after the time in Retry-After",
                retry_after_s=_WAKING_S,
            )
        self._waiting += 1
        try:
            while (link := self._nearest()) is None:
                if self.fault:
                    raise ModelNotReady(
                        f"model '{self.name}': its replicas do not start: {self.fault}; fix this, "
                        "then run `fovea ray deploy`"
                    )
                if self._waking is None or self._waking.done():
                    self._waking = asyncio.create_task(self._wake())
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._changed.wait()
            return link
        finally:
            self._waiting -= 1

    async def _wake(self) -> None:
        """Make Serve start a replica if none runs. Return when a replica runs."""
        try:
            await self._handle.awake.remote()
        except (RayError, RayServeException) as error:
            log.info("model %s: no replica started: %s", self.name, error)

    async def ask_all(self, method: str, *given: object) -> list[Any]:
        """Call a method of every running replica, and return the results.

        If no replica answers in time, return an empty list. The call does not start a replica.
        """
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return list(await self._handle.broadcast(method, *given).results_async())
        except (RayError, RayServeException, TimeoutError):
            return []
