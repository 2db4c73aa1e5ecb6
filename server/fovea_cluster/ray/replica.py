"""A replica: one model, with the scheduler and the routes that it has in `fovea serve`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fovea_cluster.ray.messages import HttpAnswer, HttpRequest, asked
from fovea_cluster.ray.metrics import export
from fovea_cluster.ray.rpc import Metadata, RpcAnswer, RpcContext, called
from fovea_preprocess.errors import FoveaError, ModelNotReady, Unavailable
from fovea_server.byte_budget import Reservation
from fovea_server.dataplane.service import Service
from fovea_server.extensions.log_settings import LogSettings
from fovea_server.grpc.arrivals import Arrivals
from fovea_server.grpc.calls import Handler, call_of
from fovea_server.grpc.inference import Inference, StreamedAnswer
from fovea_server.grpc.server import INFERENCE, inference_handlers
from fovea_server.logs import SERVER_LOG, set_up_logging
from fovea_server.metrics.metrics import model_families
from fovea_server.models.registry import Registry
from fovea_server.settings import Settings
from fovea_server.statistics.family import Family
from fovea_server.surface import Surface

log = logging.getLogger(__name__)

_RETRY_S = 5.0


class Serving:
    """Some models of a repository, and all that answers requests about them."""

    def __init__(
        self,
        given: Mapping[str, Any],
        names: Sequence[str],
        *,
        described: bool = False,
    ) -> None:
        settings = Settings(**given)
        set_up_logging(settings.log_level, verbose=settings.log_verbose)
        LogSettings(SERVER_LOG).update({"log_format": settings.log_format})
        self.models = registry = Registry(settings, only=names, described=described)
        self.service = Service(settings, registry)
        self.surface = Surface(self.service)
        self.inference = Inference(self.service)
        self.arrivals = Arrivals(self.service.budget, settings)
        self.handlers: dict[str, Handler] = inference_handlers(
            self.service, self.arrivals, self.inference
        )
        registry.start()
        while not registry.started:
            time.sleep(0.02)

    def statistics(self, name: str, version: int | None, *, v2: bool) -> dict[str, Any] | None:
        """Report the counters of a model, as /v1 or /v2; None where there is no such version."""
        service = self.service
        try:
            if v2:
                return service.plane.v2_statistics(name, version)
            counted = service.plane.statistics(name, service.traffic.durations.of(name))
        except FoveaError:
            return None
        return counted.model_dump(mode="json")

    async def streamed(self, data: bytes, token: str | None) -> StreamedAnswer:
        """Answer one request of a stream of gRPC, which the ingress has let in by this key."""
        service = self.service
        reservation = Reservation(service.budget)
        try:
            if service.door is not None:
                call = call_of(
                    f"/{INFERENCE}/ModelStreamInfer", RpcContext((), ""), service.traffic
                )
                call.holder = service.door.holder(token)
                call.enter()
                answer = await self.inference.streamed(data, reservation)
                # The ingress counts the request.
                service.traffic.keys.charge(call.holder.label, call.images)
                return answer
            return await self.inference.streamed(data, reservation)
        finally:
            reservation.release()

    def check(self) -> None:
        """Raise ModelNotReady if a model could not be loaded, or has died."""
        if failed := self.models.unserved:
            raise ModelNotReady("; ".join(failed))

    def close(self) -> None:
        """Unload the models after what they have accepted."""
        self.models.close()
        self.service.close()
        if (tracer := self.service.traffic.tracer) is not None:
            tracer.close()
        SERVER_LOG.close()


class Replica:
    """The deployment of a model: answers requests as bytes, which came to the ingress.

    Args:
        name: of the model.
        given: complete settings of the server.
        below: the models that an ensemble runs.

    It waits for a store that cannot be read.

    Raises:
        ModelNotReady: the model cannot be loaded.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, name: str, given: Mapping[str, Any], below: Sequence[str]
    ) -> None:
        while True:
            try:
                self._serving = Serving(given, (name, *below))
                break
            except Unavailable as error:
                # Ray would give the model up after three tries.
                log.warning("%s; it is tried again", error)
            await asyncio.sleep(_RETRY_S)
        self._name = name
        self._serving.check()
        await self._serving.surface.lifespan().__aenter__()
        self._exporting = asyncio.create_task(export(self._families))

    def _families(self) -> Iterable[Family]:
        service = self._serving.service
        traffic = service.traffic
        return (
            *model_families(service.plane),
            traffic.durations.family(),
            *traffic.keys.families(),
        )

    async def http(self, request: HttpRequest) -> HttpAnswer:
        """Answer a request over HTTP."""
        return await asked(self._serving.surface, request)

    async def rpc(self, method: str, data: bytes, metadata: Metadata, peer: str) -> RpcAnswer:
        """Answer a call of gRPC."""
        return await called(self._serving.handlers[method], RpcContext(metadata, peer, data))

    async def streamed(self, data: bytes, token: str | None) -> StreamedAnswer:
        """Answer one request of a stream of gRPC, which the ingress has let in by this key."""
        return await self._serving.streamed(data, token)

    async def statistics(self, version: int | None, v2: bool) -> dict[str, Any] | None:
        """Report the counters of the model; the ingress has let the client in."""
        return self._serving.statistics(self._name, version, v2=v2)

    def check_health(self) -> None:
        """Raise ModelNotReady if the model has died: Ray then replaces the replica."""
        self._serving.check()

    def __del__(self) -> None:
        if (serving := getattr(self, "_serving", None)) is not None:
            serving.close()
