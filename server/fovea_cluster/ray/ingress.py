"""The ingress: describes the models itself, and forwards what asks one to compute."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fovea_cluster.ray.counters import statistics, v2_statistics
from fovea_cluster.ray.faults import watch
from fovea_cluster.ray.forwarder import Forwarder
from fovea_cluster.ray.messages import HttpAnswer, HttpRequest
from fovea_cluster.ray.metrics import export
from fovea_cluster.ray.replica import Serving
from fovea_cluster.ray.servicer import Servicer
from fovea_preprocess.errors import FoveaError, InvalidOption
from fovea_server.http.cors import Cors
from fovea_server.http.guard import Guard
from fovea_server.http.messages import Response
from fovea_server.http.receive import (
    ClientLeft,
    in_time,
    receive_body,
    stopped,
    unless_client_leaves,
)
from fovea_server.http.v1.answers import error_answer
from fovea_server.http.v1.body import too_large
from fovea_server.http.v1.head import timeout_of
from fovea_server.http.v2.answers import error_answer as v2_error_answer
from fovea_server.http.v2.answers import json_answer
from fovea_server.http.v2.compression import too_large as v2_too_large
from fovea_server.metrics.limits import limit_families
from fovea_server.statistics.family import Family
from fovea_server.traffic.asgi import begin

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle
    from starlette.types import Message, Receive, Scope, Send

_NAME = rb"models/(?P<model>[^/]+)"
_MODEL = _NAME + rb"(?:/versions/[^/]+)?"
_FORWARDED = re.compile(
    rb"/v[12]/"
    + _MODEL
    + rb"/(?P<operation>predict(?:/form|/json)?|annotate|infer|generate|generate_stream)"
)
_STATISTICS = re.compile(
    rb"/v2/models/stats|/v1/" + _NAME + rb"/statistics|"
    rb"/v2/models/(?P<v2_model>[^/]+)(?:/versions/(?P<version>[0-9]{1,9}))?/stats"
)
# Replicas export the others.
_KNOWN_HERE = ("fovea_ready", "fovea_model_ready", "fovea_store_faults")
_TIMEOUT = b"x-request-timeout-ms"
_ID = b"x-request-id"


class Ingress(Servicer):
    """The deployment that Ray's proxies send every request to, over HTTP and gRPC.

    Args:
        given: complete settings of the server.
        handles: of the models, by name.
        stateful: names of the models with sequences.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        handles: Mapping[str, DeploymentHandle[Any]],
        stateful: tuple[str, ...],
    ) -> None:
        serving = Serving(given, tuple(handles), described=True)
        forwarders = {
            name: Forwarder(name, handle, keeps_state=name in stateful)
            for name, handle in handles.items()
        }
        super().__init__(serving, forwarders)
        self._tasks = (
            asyncio.create_task(watch(serving.models, forwarders)),
            asyncio.create_task(export(self._families)),
        )

    def _families(self) -> Iterable[Family]:
        """Build those of the answers made here, and of what only the ingress knows."""
        service = self.serving.service
        return (
            service.traffic.durations.family(),
            *service.traffic.keys.families(),
            *(family for family in limit_families(service) if family.name in _KNOWN_HERE),
        )

    def __serve_build_asgi_app__(self) -> IngressApp:
        return IngressApp(self.serving, self.forwarders)


class IngressApp:
    """The ASGI application of the ingress."""

    def __init__(self, serving: Serving, forwarders: Mapping[str, Forwarder]) -> None:
        self._serving = serving
        self._forwarders = forwarders
        self._cors = Cors(serving.service.settings.cors_origin)
        self._guard = Guard(serving.service, serving.service.settings.http_address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the lifespan."""
        # What the guard refuses is left to the routes behind it, which answer so.
        ours = scope["type"] == "http" and not self._guard.refusal(
            scope["method"], dict(scope["headers"])
        )
        forwarder = self._forwarder(scope) if ours else None

        async def without_id(message: Message) -> None:
            # Ray's proxy adds it, the same one.
            if message["type"] == "http.response.start":
                headers = [each for each in message["headers"] if each[0] != _ID]
                message = {**message, "headers": headers}
            await send(message)

        answer = None
        try:
            if forwarder is not None:
                answer = await self._forwarded(forwarder, scope, receive)
            elif ours and scope["method"] == "GET":
                answer = await self._statistics(scope)
        except ClientLeft:
            return
        if answer is None:
            await self._serving.surface(scope, receive, without_id)
            return
        start = {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
        await without_id(start)
        await send({"type": "http.response.body", "body": answer.body})

    async def _statistics(self, scope: Scope) -> HttpAnswer | None:
        """Count what all replicas have answered; None for all other requests, and where none runs.

        These are the figures of a model that nobody has asked yet, which are told here.
        """
        path = _path(scope)
        found = _STATISTICS.fullmatch(path)
        if found is None:
            return None
        service, is_v2 = self._serving.service, path.startswith(b"/v2")
        call = begin(scope, service.traffic)
        model = found["model"] or found["v2_model"]
        call.model = _unquoted(model or b"")
        try:
            service.admit(call, "statistics")
        except FoveaError:
            # The routes behind answer so.
            return None
        version = None if found["version"] is None else int(found["version"])
        if model is None:
            counted = await v2_statistics(self._forwarders, "", None)
        elif (forwarder := self._forwarders.get(call.model)) is None:
            return None
        else:
            counted = await statistics(forwarder, version, v2=is_v2)
        return None if counted is None else self._written(json_answer(counted), scope)

    def _forwarder(self, scope: Scope) -> Forwarder | None:
        """Find the way to the model that a request asks to compute; None for all others."""
        found = _FORWARDED.fullmatch(_path(scope))
        if found is None or scope["method"] != "POST":
            return None
        return self._forwarders.get(_unquoted(found["model"]))

    async def _forwarded(self, forwarder: Forwarder, scope: Scope, receive: Receive) -> HttpAnswer:
        service, settings = self._serving.service, self._serving.service.settings
        call = begin(scope, service.traffic)
        call.model = forwarder.name
        asked = _FORWARDED.fullmatch(_path(scope))
        assert asked is not None, "a forwarder was found"
        operation = asked["operation"].decode()
        call.infers(f"POST {scope['path'][:3]}/models/{{model}}/{operation}")
        is_v2 = scope["path"].startswith("/v2")
        limit = settings.http_max_input_size
        try:
            headers = dict(scope["headers"])
            timeout_s = _timeout_of(headers)
            # The replica does it again; a body of a stranger is not even received.
            service.admit(call, "inference")
            with service.budget.body() as hold:
                body = await receive_body(
                    receive,
                    hold,
                    limit,
                    v2_too_large(None, limit) if is_v2 else too_large(limit),
                    settings.body_timeout_s,
                )
                request = HttpRequest(
                    "POST",
                    _path(scope),
                    scope["query_string"],
                    list(scope["headers"]),
                    body,
                    scope["client"][0] if scope.get("client") else "",
                )
                work = unless_client_leaves(receive, forwarder.ask("http", request))
                answer: HttpAnswer = await in_time(work, timeout_s, call.began)
                return answer
        except asyncio.CancelledError:
            error: FoveaError = stopped()
        except FoveaError as failed:
            error = failed
        answer = self._written(v2_error_answer(error) if is_v2 else error_answer(error), scope)
        # What is forwarded is measured by the replica.
        call.measure(answer.status, error)
        return answer

    def _written(self, answer: Response, scope: Scope) -> HttpAnswer:
        body = b"".join(answer.body)
        cors = self._cors.headers(dict(scope["headers"]))
        headers = [(b"content-type", answer.media_type), *answer.headers, *cors]
        return HttpAnswer(answer.status, [*headers, (b"content-length", b"%d" % len(body))], body)


def _path(scope: Scope) -> bytes:
    raw: bytes = scope["raw_path"]
    return raw


def _unquoted(name: bytes) -> str:
    return unquote(name.decode("latin-1"))


def _timeout_of(headers: Mapping[bytes, bytes]) -> float | None:
    """Read the deadline; None also for one that is wrong, which the replica refuses."""
    try:
        given = headers.get(_TIMEOUT)
        return None if given is None else timeout_of(given.decode("latin-1"))
    except InvalidOption:
        return None
