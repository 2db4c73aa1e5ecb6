"""Both clients send some requests again, over real sockets, and others never."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.scripted_server import BUSY, Reply, ScriptedServer

from fovea_client import Client, ConnectionFailed, QueueFull, ServerError

Ask = Callable[..., Any]


def test_a_full_queue_is_waited_for_when_retries_are_wanted(server: ScriptedServer) -> None:
    busy: Reply = (429, {"Retry-After": "0.2"}, json.dumps(BUSY).encode())
    server.replies = [busy, busy, *server.replies]
    started = time.monotonic()
    with Client(server.url, retries=2) as client:
        assert client.predict("digits", b"image").model == "digits"
    assert time.monotonic() - started >= 0.4
    assert [body for _, _, _, body in server.requests] == [b"image"] * 3


def test_retries_end(server: ScriptedServer) -> None:
    server.replies = [(429, {"Retry-After": "0"}, json.dumps(BUSY).encode())]
    with Client(server.url, retries=1) as client, pytest.raises(QueueFull, match="256"):
        client.predict("digits", b"image")
    assert len(server.requests) == 2


def test_nothing_is_retried_unless_asked(server: ScriptedServer) -> None:
    server.replies = [(503, {"Retry-After": "0"}, b"down")]
    with Client(server.url) as client, pytest.raises(ServerError):
        client.predict("digits", b"image")
    assert len(server.requests) == 1


def test_what_may_have_been_executed_is_not_repeated(server: ScriptedServer, ask: Ask) -> None:
    answer = server.replies
    server.replies = [(0, {}, b""), *answer]
    with pytest.raises(ConnectionFailed, match="may have executed") as caught:
        ask(server.url, "predict", "digits", b"image", retries=3)
    assert caught.value.unanswered
    assert len(server.requests) == 1
    server.replies = [(0, {}, b""), *answer]
    wanted = {"retries": 3, "repeat_unanswered": True}
    assert ask(server.url, "predict", "digits", b"image", **wanted).model == "digits"
    assert len(server.requests) == 3


def test_a_question_is_repeated(server: ScriptedServer, ask: Ask) -> None:
    server.replies = [(0, {}, b""), (200, {}, b"")]
    assert ask(server.url, "ready", retries=1)
    assert len(server.requests) == 2


def test_the_timeout_is_of_all_attempts(server: ScriptedServer, ask: Ask) -> None:
    server.delay_s = 0.5
    settings = {"timeout": 0.2, "retries": 9, "repeat_unanswered": True}
    with pytest.raises(ConnectionFailed, match=r"0\.2"):
        ask(server.url, "predict", "digits", b"image", **settings)
    assert len(server.requests) == 1


def test_the_servers_deadline_shrinks_with_the_attempts(server: ScriptedServer, ask: Ask) -> None:
    server.replies = [(429, {"Retry-After": "0.2"}, json.dumps(BUSY).encode()), *server.replies]
    ask(server.url, "predict", "digits", b"image", options={"timeout_ms": 5000}, retries=1)
    first, second = (float(each[2]["x-request-timeout-ms"]) for each in server.requests)
    assert second + 200 <= first <= 5000
    server.replies = [(429, {"Retry-After": "2"}, json.dumps(BUSY).encode())]
    with pytest.raises(QueueFull):
        ask(server.url, "predict", "digits", b"image", options={"timeout_ms": 1000}, retries=1)
    assert len(server.requests) == 3


def test_a_wait_beyond_the_timeout_is_not_begun(server: ScriptedServer) -> None:
    server.replies = [(429, {"Retry-After": "3600"}, json.dumps(BUSY).encode())]
    with Client(server.url, timeout=60, retries=3) as client, pytest.raises(QueueFull):
        client.predict("digits", b"image")
    assert len(server.requests) == 1
