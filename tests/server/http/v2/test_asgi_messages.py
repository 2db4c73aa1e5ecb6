"""The v2 protocol over ASGI, message by message: late bodies, clients that leave, mount points."""

import asyncio
import json
from dataclasses import replace
from functools import partial

import pytest

from fovea_server.byte_budget import ByteBudget, too_slow
from fovea_server.http.call_middleware import CallMiddleware
from fovea_server.http.v2.routes import V2Route

pytestmark = pytest.mark.slow

JSON = {"inputs": [{"name": "X", "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]}]}


def only(route, around):
    """An application of one route; `around` gets each endpoint and its request."""

    class Around(V2Route):
        def route(self, request):
            super().route(request)
            endpoint = request.endpoint

            async def answer(service, request):
                return await around(partial(endpoint, service, request), request)

            request.endpoint = answer

    return CallMiddleware(Around(route).handle, route.traffic)


def asked(runner, app, *messages, path="/v2/models/adder/infer", **scope):
    """Send messages by hand, or errors; silence follows. The messages of the answer."""
    coming, sent = list(messages), []

    async def receive() -> dict[str, object]:
        if not coming:
            await asyncio.Event().wait()
        message = coming.pop(0)
        if isinstance(message, Exception):
            raise message
        return message

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    made = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [],
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        **scope,
    }
    runner.run(app(made, receive, send))
    return sent


def test_a_body_that_does_not_arrive(runner, app, budget):
    piece = {"type": "http.request", "body": b"{", "more_body": True}
    start, body = asked(runner, app, piece, too_slow(0.5))
    assert start["status"] == 400
    assert (b"connection", b"close") in start["headers"]
    assert b"did not arrive within 0.5 s" in body["body"]
    assert budget.held == 0


def test_a_client_that_leaves_while_it_sends(runner, app, budget):
    piece = {"type": "http.request", "body": bytes(1000), "more_body": True}
    assert asked(runner, app, piece, {"type": "http.disconnect"}) == []
    assert budget.held == 0


def test_a_client_that_leaves_before_its_answer(runner, service, budget):
    started, cancelled = [], []

    async def slowly(endpoint, request):
        started.append(request)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request)
            raise

    body = {"type": "http.request", "body": b"{}"}
    assert asked(runner, only(service, slowly), body, {"type": "http.disconnect"}) == []
    assert started == cancelled != []
    assert budget.held == 0


def test_a_server_that_stops_before_the_answer(runner, service):
    async def stopped(endpoint, request):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    body = {"type": "http.request", "body": b"{}"}
    start, body = asked(runner, only(service, stopped), body)
    assert start["status"] == 503
    assert b"the server stopped" in body["body"]


def test_large_answers_are_counted(runner, service):
    budget = ByteBudget(200_000)
    held = []

    async def enlarged(endpoint, request):
        answer = await endpoint()
        held.append(budget.held)
        return replace(answer, body=[bytes(60_000), bytes(60_000)])

    app = only(replace(service, budget=budget), enlarged)
    sent = asked(runner, app, {"type": "http.request", "body": b""}, path="/v2", method="GET")
    assert sum(len(message.get("body", b"")) for message in sent) == 120_000
    assert budget.held == 0
    budget.count_answer(100_000)
    start, _ = asked(runner, app, {"type": "http.request", "body": b""}, path="/v2", method="GET")
    assert start["status"] == 503
    assert budget.held == 100_000


def test_below_a_mount_point(runner, app):
    body = {"type": "http.request", "body": json.dumps(JSON).encode()}
    path = "/a b/v2/models/adder/infer"
    for raw in ({}, {"raw_path": b"/a%20b/v2/models/adder/infer"}):
        start, _ = asked(runner, app, body, path=path, root_path="/a b", **raw)
        assert start["status"] == 200
