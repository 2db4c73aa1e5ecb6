"""A replica: a server with one model.

Only the Ray fronts (the servers of the nodes) may use its port.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import ray

from fovea_preprocess.errors import FoveaError, Unavailable
from fovea_server.app import App
from fovea_server.grpc.server import GrpcServer
from fovea_server.listen import bind
from fovea_server.metrics.metrics import model_families
from fovea_server.observability.histogram import Family
from fovea_server.ray.behind import BehindFront, BehindFrontRpc
from fovea_server.ray.metrics import export
from fovea_server.ray.policy import UNDER_WAY
from fovea_server.ray.running import LoadedModels, ServerThread
from fovea_server.serve import make_server
from fovea_server.settings import Settings

log = logging.getLogger(__name__)

_RETRY_S = 5.0
# Values of settings that a replica does not need, because the Ray fronts apply these settings.
_BEHIND: dict[str, Any] = {
    "http_port": 0,
    "http_server_cert": None,
    "http_server_key": None,
    "http_restricted_api": (),
    "cors_origin": (),
    "page": False,
    "grpc_port": 0,
    "grpc_use_ssl": False,
    "grpc_use_ssl_mutual": False,
    "grpc_restricted_protocol": (),
    "grpc_infer_response_compression_level": "none",
    "log_access": False,
}


def replica_settings(given: Mapping[str, Any], host: str) -> Settings:
    """Return the settings of a replica from the deployed settings."""
    return Settings(**{**given, **_BEHIND, "http_address": host, "grpc_address": host})


class BackendServers:
    """The HTTP and gRPC servers of a replica. They accept only requests of Ray fronts.

    Attributes:
        about: addresses and token, which a Ray front needs to send requests.
    """

    def __init__(self, app: App) -> None:
        service = app.service
        host, token = service.settings.http_address, secrets.token_urlsafe(32)
        grpc_server = GrpcServer(service, interceptors=(BehindFrontRpc(token),))
        behind = partial(BehindFront, token=token)
        server = make_server(app, behind=behind, grpc_server=grpc_server)
        listener = bind(host, 0)
        self.running = ServerThread(server, service, listener)
        port = listener.getsockname()[1]
        self.about = {"host": host, "http": port, "grpc": grpc_server.port, "token": token}


class Replica:
    """The deployment of a model. If a remote store cannot be read, it waits and tries again.

    Args:
        name: name of the model.
        given: all settings of the server.
        below: names of the models that an ensemble runs.

    Raises:
        ModelNotReady: the model cannot be loaded.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, name: str, given: Mapping[str, Any], below: Sequence[str]
    ) -> None:
        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        settings = replica_settings(given, host)
        self._name = name
        while True:
            try:
                self._serving = await asyncio.to_thread(LoadedModels, settings, (name, *below))
                break
            except Unavailable as error:
                # Wait here, because Ray would stop after three failed starts.
                log.warning("%s; retrying", error)
            await asyncio.sleep(_RETRY_S)
        try:
            self._serving.check()
            self._behind = await asyncio.to_thread(BackendServers, self._serving.app)
        except FoveaError:
            self._serving.close()
            raise
        self._looked, self._spent = time.monotonic(), 0.0
        self._exporting = asyncio.create_task(export(self._families))

    def record_replica_metadata(self) -> dict[str, Any]:
        """Return the addresses and the token of this replica.

        Serve passes them to the Ray fronts.
        """
        return self._behind.about

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the mean number of concurrent requests since the last call.

        It is the total duration of requests divided by the elapsed time. A count at single points
        in time would miss short requests, so Serve might stop a model that is in use.
        """
        samples = self._serving.service.traffic.durations.family().samples
        spent = sum(value for suffix, _, value in samples if suffix == "_sum")
        now = time.monotonic()
        mean = (spent - self._spent) / max(now - self._looked, 1e-3)
        self._looked, self._spent = now, spent
        return {UNDER_WAY: mean}

    def _families(self) -> Iterable[Family]:
        service = self._serving.service
        traffic = service.traffic
        return (
            *model_families(service.models),
            traffic.durations.family(),
            *traffic.keys.families(),
        )

    async def awake(self) -> None:
        """Do nothing. A call of this method makes Serve start a replica if none runs."""

    async def statistics(self, version: int | None, v2: bool) -> dict[str, Any] | None:
        """Return the model's counters in the form of /v1 or /v2.

        If the version does not exist, return None.
        """
        service = self._serving.service
        try:
            if v2:
                return service.models.v2_statistics(self._name, version)
            durations = service.traffic.durations.of(self._name)
            return service.models.statistics(self._name, durations).model_dump(mode="json")
        except FoveaError:
            return None

    def check_health(self) -> None:
        """Raise an error if the model or the server has failed. Ray then replaces the replica."""
        self._serving.check()
        self._behind.running.check()

    def __del__(self) -> None:
        # Two seconds ago, Serve removed this replica from the list that the Ray fronts get.
        if (behind := getattr(self, "_behind", None)) is not None:
            behind.running.stop()
