"""A replica: a server with one model, on a port that only fronts may use."""

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
# Settings that a replica does not need, because the fronts apply them.
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
    """The HTTP and gRPC servers of a replica, restricted to fronts.

    Attributes:
        about: metadata that a front needs to send requests.
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
    """The deployment of a model. It waits while a remote store cannot be read.

    Args:
        name: name of the model.
        given: complete settings of the server.
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
                # Ray would give up after three tries.
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
        """Return the addresses and the token of this replica, which Serve passes to the fronts."""
        return self._behind.about

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the mean number of concurrent requests since the last call.

        It is the total duration of requests divided by the elapsed time. Samples would miss short
        requests, and a model in use could be stopped.
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
        """Do nothing: a call makes Serve start a replica if none runs."""

    async def statistics(self, version: int | None, v2: bool) -> dict[str, Any] | None:
        """Return the model's counters like /v1 or /v2; None if the version does not exist."""
        service = self._serving.service
        try:
            if v2:
                return service.models.v2_statistics(self._name, version)
            durations = service.traffic.durations.of(self._name)
            return service.models.statistics(self._name, durations).model_dump(mode="json")
        except FoveaError:
            return None

    def check_health(self) -> None:
        """Raise ModelNotReady if the model has died, so that Ray replaces the replica."""
        self._serving.check()
        self._behind.running.check()

    def __del__(self) -> None:
        # Serve has told the fronts two seconds ago that this replica leaves.
        if (behind := getattr(self, "_behind", None)) is not None:
            behind.running.stop()
