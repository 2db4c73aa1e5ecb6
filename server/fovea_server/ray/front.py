"""The Ray front: the server of a node, which forwards requests to the replicas of models.

It answers requests for metadata of models itself.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import ray
from ray import serve
from ray.serve._private.common import DeploymentID, DeploymentTargetInfo
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve._private.long_poll import LongPollClient, LongPollNamespace
from tritonclient.grpc import service_pb2 as messages

from fovea_preprocess.errors import FoveaError
from fovea_server.app import App
from fovea_server.byte_budget import Reservation
from fovea_server.dataplane.service import Service
from fovea_server.grpc.infer_request import InferMessage, parse_infer, version_of
from fovea_server.grpc.inference import Inference, StreamedAnswer
from fovea_server.grpc.methods import Method
from fovea_server.grpc.server import GrpcServer
from fovea_server.listen import bind
from fovea_server.metrics.metrics import limit_families
from fovea_server.observability.histogram import Family
from fovea_server.ray.behind import CLIENT
from fovea_server.ray.config import MODELS, NODE, ROSTER
from fovea_server.ray.faults import watch
from fovea_server.ray.forwarder import Forwarder
from fovea_server.ray.http_fronts import V1Forwarding, V2Forwarding
from fovea_server.ray.link import Link, Metadata
from fovea_server.ray.metrics import export, v2_statistics
from fovea_server.ray.running import LoadedModels, ServerThread
from fovea_server.serve import Server, make_server
from fovea_server.settings import Settings
from fovea_server.traffic.call import CALL, REQUEST_ID_HEADER

_PASSED_ON = ("traceparent", "tracestate")

log = logging.getLogger(__name__)

Replicas = Mapping[str, Mapping[str, Any]]
"""The running replicas: a dict from the ID of each replica to its metadata; see
`record_replica_metadata`.
"""

_TARGETS = LongPollNamespace.DEPLOYMENT_TARGETS
_LOOK_S = 2.0

# Names of metrics that only a Ray front exports. Replicas export all other metrics of models.
_KNOWN_HERE = ("fovea_ready", "fovea_model_ready", "fovea_repository_sync_errors")
# Time in seconds for which clients can close their connections to a replaced server.
_LEAVING_S = 2.0
_RETRY_S = 5.0

Place = tuple[str, int]


def front_server(service: Service, forwarders: Mapping[str, Forwarder]) -> GrpcServer:
    """Create the gRPC server of a Ray front.

    The server that replaces it may use the port before this server ends.
    """
    counted = Method("statistics", partial(_statistics, forwarders))
    return GrpcServer(
        service,
        inference=ForwardedInference(service, forwarders),
        replaced={"ModelStatistics": counted},
        shares_port=True,
    )


async def _statistics(
    forwarders: Mapping[str, Forwarder], service: Service, request: messages.ModelStatisticsRequest
) -> dict[str, Any]:
    version = version_of(request.version)
    counted = await v2_statistics(forwarders, request.name, version)
    return counted or service.models.v2_statistics(request.name or None, version)


class ForwardedMessage(NamedTuple):
    """A request: its bytes, and its fields as parsed by protobuf."""

    data: bytes
    message: InferMessage

    @property
    def model_name(self) -> str:
        """Return the name of the requested model."""
        return self.message.model_name


class ForwardedInference(Inference):
    """Forwards requests if the model has replicas, and answers other requests itself."""

    def __init__(self, service: Service, forwarders: Mapping[str, Forwarder]) -> None:
        super().__init__(service)
        self._forwarders = forwarders

    def read(self, data: bytes) -> ForwardedMessage:  # type: ignore[override]
        """Parse a request.

        Raises:
            InvalidRequest: the bytes are not a `ModelInferRequest`.
        """
        return ForwardedMessage(data, parse_infer(data))

    async def _infer(self, message: ForwardedMessage) -> bytes:  # type: ignore[override]
        forwarder = self._forwarders.get(message.model_name)
        if forwarder is None:
            return await super()._infer(message.message)
        return await self._forward(forwarder, lambda link, sent: link.infer(message.data, sent))

    async def answer_streamed(self, data: bytes, reservation: Reservation) -> StreamedAnswer:
        """Answer one request of a stream. `reservation` counts the bytes of the response."""
        request_id, model = "", ""
        try:
            fields = parse_infer(data).fields
            request_id, model = fields.id, fields.model_name
            if (forwarder := self._forwarders.get(model)) is None:
                return await super().answer_streamed(data, reservation)
            answer = await self._forward(
                forwarder, lambda link, sent: link.infer_streamed(data, sent)
            )
            return StreamedAnswer(request_id, answer, model)
        except FoveaError as error:
            return StreamedAnswer(request_id, error, model)

    async def _forward(
        self, forwarder: Forwarder, send: Callable[[Link, Metadata], Awaitable[bytes]]
    ) -> bytes:
        call = CALL.get()
        assert call is not None, "a request is being answered"
        metadata = [(REQUEST_ID_HEADER, call.id), (CLIENT, call.client or "")]
        metadata += [(name, value) for name in _PASSED_ON if (value := call.header(name))]
        if call.token is not None:
            metadata.append(("x-api-key", call.token))

        async def sent(link: Link) -> bytes:
            try:
                answer = await send(link, tuple(metadata))
            except FoveaError:
                # The replica measures the requests that it answers, so the front does not.
                call.operation, call.span = "", None
                raise
            call.operation, call.span = "", None
            return answer

        return await forwarder.ask(sent)


async def follow(application: str, changed: Mapping[str, Callable[[Replicas], None]]) -> None:
    """Pass the running replicas of each deployment to its function, now and after every change.

    `changed` maps the name of a deployment to its function, which runs on this event loop. A
    replica is removed before it stops. If Serve's controller does not answer, the last replicas
    stay. The coroutine does not end.
    """
    keys: dict[Any, Callable[[Any], None]] = {
        (_TARGETS, DeploymentID(name, application)): partial(_pass_on, call)
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
        log.warning("Ray Serve's controller does not respond; retrying")


def _pass_on(call: Callable[[Replicas], None], found: DeploymentTargetInfo) -> None:
    replicas = {
        each.replica_id.unique_id: each.replica_metadata
        for each in found.running_replicas
        if each.replica_metadata
    }
    try:
        call(replicas)
    except Exception:
        # Log the error here. If an exception reached Ray, Ray would report no further changes.
        log.exception("the list of replicas could not be updated")


class NodeFront:
    """The deployment of the Ray fronts: each node has one, which starts when models are deployed.

    If another configuration is deployed, the process stays: a new server takes over the ports, and
    the old server answers its remaining requests.

    Raises:
        Unavailable: a port is in use, or a store cannot be read.
    """

    async def __init__(self) -> None:  # type: ignore[misc]  # Ray awaits it
        self._host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._deployed = self._wanted = self._fault = ""
        self._served: _Served | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._listeners: dict[Place, socket.socket] = {}
        self._newest: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._following = asyncio.create_task(follow(MODELS, {ROSTER: self._on_roster}))
        await self._take_over(await self._newest.get())
        self._tasks = (
            asyncio.create_task(self._go_on()),
            asyncio.create_task(export(self._families)),
        )

    def _on_roster(self, replicas: Replicas) -> None:
        if replicas:
            self._newest.put_nowait(max(replicas.values(), key=lambda metadata: metadata["at"]))

    async def _go_on(self) -> None:
        while True:
            roster = await self._newest.get()
            self._wanted, self._fault = roster["id"], ""
            while roster["id"] != self._deployed and self._newest.empty():
                try:
                    await self._take_over(roster)
                except (FoveaError, OSError) as error:
                    self._fault = str(error)
                    log.exception("the new configuration could not be applied; retrying")
                    await asyncio.sleep(_RETRY_S)

    async def _take_over(self, roster: Mapping[str, Any]) -> None:
        """Start a server for the deployment, and then stop the previous server."""
        old = self._served
        self._served = await asyncio.to_thread(self._serve, roster)
        self._deployed, self._fault = roster["id"], ""
        if old is not None:
            ending = asyncio.create_task(asyncio.to_thread(old.stop, _LEAVING_S))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _serve(self, roster: Mapping[str, Any]) -> _Served:
        given = dict(roster["given"])
        for key in ("http_address", "grpc_address"):
            if given[key] == NODE:
                given[key] = self._host
        settings = Settings(**given)
        http = settings.http_address, settings.http_port
        if http not in self._listeners:
            self._listeners[http] = bind(*http)
        grpc = settings.grpc_address, settings.grpc_port
        if settings.allow_grpc and (self._served is None or self._served.grpc != grpc):
            # The new gRPC server may share its port, so check here that no other program uses the
            # port.
            bind(*grpc, "grpc_address", "grpc_port").close()
        served = _Served(settings, roster["models"], self._listeners[http].dup())
        for place in self._listeners.keys() - {http}:
            self._listeners.pop(place).close()
        return served

    async def serving(self) -> dict[str, str]:
        """Return the served deployment ID, the wanted deployment ID, the host, and the error.

        The error is "" if there is none.
        """
        ids = {"id": self._deployed, "wanted": self._wanted}
        return {**ids, "host": self._host, "fault": self._fault}

    def _families(self) -> Iterable[Family]:
        """Return metrics of the front's responses, and metrics that only a front exports."""
        if self._served is None:
            return ()
        service = self._served.serving.service
        return (
            service.traffic.durations.family(),
            *service.traffic.keys.families(),
            *(family for family in limit_families(service) if family.name in _KNOWN_HERE),
        )

    def check_health(self) -> None:
        """Raise the error that ended the server, so that Ray starts another front."""
        if self._served is not None:
            self._served.running.check()

    def __del__(self) -> None:
        if (served := getattr(self, "_served", None)) is not None:
            served.stop()


def make_front(app: App, forwarders: Mapping[str, Forwarder]) -> Server:
    """Create the server of a Ray front.

    `app` describes models, and `forwarders` forward requests to their replicas.
    """
    service = app.service
    routes = V1Forwarding(service, forwarders), V2Forwarding(service, forwarders)
    grpc_server = front_server(service, forwarders) if service.settings.allow_grpc else None
    return make_server(app, before=routes, grpc_server=grpc_server)


class _Served:
    """The server of a Ray front for one configuration."""

    def __init__(
        self, settings: Settings, models: Mapping[str, bool], listener: socket.socket
    ) -> None:
        self.grpc = settings.grpc_address, settings.grpc_port
        self.serving = LoadedModels(settings, tuple(models), described=True)
        service = self.serving.service
        forwarders = {
            name: Forwarder(
                name,
                serve.get_deployment_handle(name, MODELS),
                keeps_state=keeps_state,
                most_waiting=settings.max_queue,
                leaving_s=settings.exit_timeout_secs + 2 * _LEAVING_S,
            )
            for name, keeps_state in models.items()
        }
        server = make_front(self.serving.app, forwarders)

        async def close() -> None:
            for forwarder in forwarders.values():
                await forwarder.close()

        try:
            self.running = ServerThread(server, service, listener, close)
        except FoveaError:
            self.serving.close()
            raise
        changed = {name: forwarder.update for name, forwarder in forwarders.items()}
        self._tasks = [
            asyncio.run_coroutine_threadsafe(each, self.running.loop)
            for each in (follow(MODELS, changed), watch(self.serving.models, forwarders))
        ]

    def stop(self, still_s: float = 0.0) -> None:
        """Stop the server; see `ServerThread.stop`."""
        self.running.stop(still_s)
