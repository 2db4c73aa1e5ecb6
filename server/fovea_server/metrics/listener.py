"""Serves the metrics on a separate port."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import cast

from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn import Config, Server

from fovea_preprocess.errors import FoveaError
from fovea_server.dataplane.service import Service
from fovea_server.feature import Feature
from fovea_server.http.call_middleware import CallMiddleware
from fovea_server.http.connection import Bounds, Connection
from fovea_server.http.guard import Guard, GuardedApp
from fovea_server.http.messages import allow
from fovea_server.http.v1.answers import error_answer
from fovea_server.listen import METRICS_SHARE, bind, share_of_descriptors
from fovea_server.metrics.machine import MachineMetrics
from fovea_server.metrics.metrics import metrics_text
from fovea_server.traffic.call import Call

log = logging.getLogger(__name__)

_ALLOW = {"allow": allow(["GET"])}


class MetricsServer:
    """Serves /metrics on a separate port, as Triton does.

    All other paths return an empty response.
    """

    def __init__(self, service: Service, features: Sequence[Feature] = ()) -> None:
        self._service, self._features = service, features
        guard = Guard(service, service.settings.metrics_address)
        self._machine = MachineMetrics(service.settings.metrics_interval_ms / 1e3)
        # A thread of its own, so that a scrape does not wait behind the inference requests that it
        # measures.
        self._thread = ThreadPoolExecutor(1, "metrics")
        bounds = Bounds(
            share_of_descriptors(METRICS_SHARE), service.settings.body_timeout_s, service.budget
        )
        connection = partial(Connection, traffic=service.traffic, bounds=bounds)
        self._config = Config(
            CallMiddleware(GuardedApp(self._answer, guard, _make_refusal), service.traffic),
            # uvicorn only calls this argument, so a function can replace the class that it expects.
            http=cast("type[asyncio.Protocol]", connection),
            ws="none",
            interface="asgi3",
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            log_config=None,
            access_log=False,
        )
        # `Server.run` would handle the signals of the process, so `startup` and `shutdown` are
        # called instead.
        self._server = Server(self._config)

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            Unavailable: the address or the port is not available.
        """
        settings = self._service.settings
        listener = bind(settings.metrics_address, settings.metrics_port)
        self._config.load()
        self._server.lifespan = self._config.lifespan_class(self._config)
        await self._server.startup([listener])
        log.info("metrics on %s port %d: /metrics", settings.metrics_address, self.port)

    def reload(self) -> None:
        """Do nothing: this server has no certificate."""

    @property
    def port(self) -> int:
        """The port on which the server listens, after `start`."""
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Reject new connections, and close open connections after their responses."""
        if not self._server.started:
            return
        self._config.timeout_graceful_shutdown = math.ceil(grace_s)
        await self._server.shutdown()
        self._thread.shutdown(wait=False)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "OPTIONS":
            answer: Response = PlainTextResponse(headers=_ALLOW)
        elif scope["method"] not in ("GET", "HEAD"):
            headers = {"content-type": "text/plain"} | _ALLOW
            answer = Response('{"error":"Method Not Allowed"}', 405, headers)
        elif scope["path"] != "/metrics":
            answer = PlainTextResponse()
        elif (error := self._find_refusal(scope["state"]["call"])) is not None:
            refusal = error_answer(error)
            headers = {name.decode(): value.decode() for name, value in refusal.headers}
            answer = PlainTextResponse(str(error), refusal.status, headers)
        else:
            # The text is made in a thread, because it takes too long for the event loop if there
            # are many models.
            principal = scope["state"]["call"].principal
            text = await asyncio.get_running_loop().run_in_executor(
                self._thread, metrics_text, self._service, self._features, self._machine, principal
            )
            answer = PlainTextResponse(text)
        await answer(scope, receive, send)

    def _find_refusal(self, call: Call) -> FoveaError | None:
        """Return an error if the client may not read the metrics; otherwise return None."""
        try:
            self._service.authenticator.admit(call, "metrics")
        except FoveaError as error:
            return error
        return None


def _make_refusal(error: FoveaError, path: str) -> Response:
    return PlainTextResponse(str(error), 403)
