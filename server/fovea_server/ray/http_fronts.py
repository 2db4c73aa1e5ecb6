"""Forwards HTTP requests for inference and statistics to the replicas of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import ClassVar
from urllib.parse import unquote

from fovea_preprocess.errors import BodyTooLarge, FoveaError, InvalidOption
from fovea_server.dataplane.service import Service
from fovea_server.http.fast_routes import FastRoute
from fovea_server.http.messages import Request, Response
from fovea_server.http.v1.answers import error_answer
from fovea_server.http.v1.body import too_large
from fovea_server.http.v1.request_head import timeout_of
from fovea_server.http.v2.answers import error_answer as v2_error_answer
from fovea_server.http.v2.answers import json_answer
from fovea_server.http.v2.answers import too_large as v2_too_large
from fovea_server.ray.behind import CLIENT, TOKEN
from fovea_server.ray.forwarder import Forwarder
from fovea_server.ray.metrics import statistics, v2_statistics
from fovea_server.traffic.call import REQUEST_ID_HEADER

_MODEL = r"models/(?P<model>[^/]+)(?:/versions/[^/]+)?"
# Headers that the Ray front has processed, so they are not sent to a replica.
_OF_THE_FRONT = frozenset(
    (
        *(b"host", b"origin", b"sec-fetch-site", b"connection", b"keep-alive", b"te", b"upgrade"),
        *(b"transfer-encoding", b"content-length", b"expect"),
        *(REQUEST_ID_HEADER.encode(), CLIENT.encode(), TOKEN.encode()),
    )
)


class _Forwarding(FastRoute):
    """Route of a Ray front that forwards requests about models with replicas.

    Other requests are answered by the routes after this one.
    """

    _INFERENCE: ClassVar[re.Pattern[str]]
    _STATISTICS: ClassVar[re.Pattern[str]]

    def __init__(self, service: Service, forwarders: Mapping[str, Forwarder]) -> None:
        super().__init__(service)
        self.forwarders = forwarders

    def takes(self, method: str, target: str) -> bool:
        """Return whether replicas answer a request."""
        found = self._match_path(method, target.partition("?")[0])
        if found is None:
            return False
        return found["model"] is None or self._model(found) in self.forwarders

    def _match_path(self, method: str, path: str) -> re.Match[str] | None:
        if method == "POST":
            return self._INFERENCE.fullmatch(path)
        return self._STATISTICS.fullmatch(path) if method == "GET" else None

    @staticmethod
    def _model(found: re.Match[str]) -> str:
        return unquote(found["model"] or "")

    def route(self, request: Request) -> None:
        """Check access, and set the endpoint. The body of a rejected request is not received."""
        call = request.call
        found = self._match_path(call.method, call.path.partition("?")[0])
        assert found is not None, "it was taken"
        call.model = self._model(found)
        if call.method == "GET":
            self.service.authenticator.admit(call, "statistics")
            version = found.groupdict().get("version")
            request.endpoint = partial(self._count, None if version is None else int(version))
            return
        call.infers(f"POST {call.path[:3]}/models/{{model}}/{found['operation']}")
        self.service.authenticator.admit(call, "inference")
        request.timeout_s = _timeout_of(request)
        request.endpoint = self._forward

    async def _forward(self, service: Service, request: Request) -> Response:
        head, body, call = _head(request), request.body, request.call
        answer = await self.forwarders[call.model].ask(lambda link: link.http(head, body))
        # The replica measures this request, so the front does not.
        call.operation, call.span = "", None
        return answer

    async def _count(self, version: int | None, service: Service, request: Request) -> Response:
        raise NotImplementedError


class V1Forwarding(_Forwarding):
    """Forwards requests of /v1."""

    keeps_refused = False
    _INFERENCE = re.compile(r"/v1/" + _MODEL + r"/(?P<operation>predict(?:/form|/json)?|annotate)")
    _STATISTICS = re.compile(r"/v1/models/(?P<model>[^/]+)/statistics")

    async def _count(self, version: int | None, service: Service, request: Request) -> Response:
        model = request.call.model
        if (counted := await statistics(self.forwarders[model], v2=False)) is not None:
            return json_answer(counted)
        # If no replica runs, return the statistics of a model without requests.
        return json_answer(service.models.statistics(model, {}).model_dump(mode="json"))

    def error_answer(self, error: FoveaError) -> Response:
        """Return the response for an error, in the form of /v1."""
        return error_answer(error)

    def too_large(self, size: int | None) -> BodyTooLarge:
        """Return the error for a body that exceeds the limit."""
        return too_large(self.service.settings.http_max_input_size)


class V2Forwarding(_Forwarding):
    """Forwards requests of the v2 protocol."""

    keeps_refused = True
    _INFERENCE = re.compile(r"/v2/" + _MODEL + r"/(?P<operation>infer|generate(?:_stream)?)")
    _STATISTICS = re.compile(
        r"/v2/models(?:/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]{1,9}))?)?/stats"
    )

    async def _count(self, version: int | None, service: Service, request: Request) -> Response:
        model = request.call.model
        counted = await v2_statistics(self.forwarders, model, version)
        return json_answer(counted or service.models.v2_statistics(model or None, version))

    def error_answer(self, error: FoveaError) -> Response:
        """Return the response for an error, in Triton's form."""
        return v2_error_answer(error)

    def too_large(self, size: int | None) -> BodyTooLarge:
        """Return the error for a body that exceeds the limit, with Triton's text."""
        return v2_too_large(size, self.service.settings.http_max_input_size)


def _head(request: Request) -> bytes:
    """Return the head of a request for a replica, without the last lines, which `Link` adds."""
    call = request.call
    lines = [f"{call.method} {call.path} HTTP/1.1".encode("latin-1")]
    lines += [b"%s: %s" % each for each in request.headers.items() if each[0] not in _OF_THE_FRONT]
    lines.append(
        f"{REQUEST_ID_HEADER}: {call.id}\r\n{CLIENT}: {call.client or ''}".encode("latin-1")
    )
    return b"\r\n".join((*lines, b"content-length: %d\r\n" % len(request.body)))


def _timeout_of(request: Request) -> float | None:
    """Return the timeout of a request in seconds, or None if it is absent or invalid."""
    try:
        return timeout_of(request.header("x-request-timeout-ms"))
    except InvalidOption:
        return None
