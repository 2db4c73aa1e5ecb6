"""Many images through few requests at a time, over a fake server that answers in any order."""

import asyncio
import io
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from tests.client.scripted_server import BUSY, Reply, ScriptedServer

from fovea_client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    ImageError,
    ImageResult,
    QueueFull,
    ServerError,
)
from fovea_client.testing import FakeServer

COUNT, IN_FLIGHT = 40, 8


def told(image: bytes | str) -> ImageResult | ImageError | ServerError | ConnectionFailed:
    """An image is the number that it says, as a width."""
    words = {
        b"broken": ImageError("invalid_image", "cut off"),
        b"gone": ConnectionFailed("nobody there"),
        b"full": ServerError(503, "model_not_ready", "loading"),
    }
    assert isinstance(image, bytes)
    return words.get(image) or ImageResult(int(image), 1, 1, ())


class Feed:
    """Images that count how many were taken, and how many results came by then."""

    error: Exception | None = None

    def __init__(self, images: list[Any]) -> None:
        self.images = images
        self.taken = self.results = self.most = 0

    def __iter__(self) -> Iterator[bytes]:
        for image in self.images:
            self.taken += 1
            self.most = max(self.most, self.taken - self.results)
            yield image
        if self.error:
            raise self.error

    async def later(self) -> AsyncIterator[bytes]:
        for image in self:
            await asyncio.sleep(0)
            yield image


def through(kind: str, feed: Feed, server: FakeServer) -> list[ImageResult | ImageError]:
    results = []
    if kind == "sync":
        with Client("http://fake", transport=server) as client:
            for result in client.predict_many("m", feed, in_flight=IN_FLIGHT):
                feed.results += 1
                results.append(result)
        return results

    async def run() -> None:
        async with AsyncClient("http://fake", transport=server) as client:
            images = feed if kind == "async" else feed.later()
            async for result in client.predict_many("m", images, in_flight=IN_FLIGHT):
                feed.results += 1
                results.append(result)

    asyncio.run(run())
    return results


@pytest.fixture(params=["sync", "async", "async, of an async iterator"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_results_are_in_order_and_images_are_taken_as_results_are(kind: str) -> None:
    images = [b"%d" % (number + 1) for number in range(COUNT)]
    images[7] = b"broken"
    feed = Feed(images)
    results = through(kind, feed, FakeServer({"m": told}))
    assert results[7] == ImageError("invalid_image", "cut off")
    widths = [each.width for each in results if isinstance(each, ImageResult)]
    assert widths == [number + 1 for number in range(COUNT) if number != 7]
    assert feed.most <= IN_FLIGHT


@pytest.mark.parametrize(("image", "error"), [(b"gone", ConnectionFailed), (b"full", ServerError)])
def test_other_errors_end_it(kind: str, image: bytes, error: type[Exception]) -> None:
    feed = Feed([b"1", image, *[b"2"] * COUNT])
    with pytest.raises(error):
        through(kind, feed, FakeServer({"m": told}))
    assert feed.taken <= IN_FLIGHT + 2


def test_an_image_that_cannot_be_sent_only_fails_itself(kind: str) -> None:
    grey = np.zeros((4, 4), np.uint8)
    images = [b"1", b"", "nowhere.jpg", grey, 3, io.BytesIO(b"2")]
    results = through(kind, Feed(images), FakeServer({"m": told}))
    assert [type(each) for each in results] == [ImageResult, *[ImageError] * 4, ImageResult]
    words = ("is empty", "nowhere.jpg", r"uint8 \[height", "not int")
    for result, word in zip(results[1:5], words, strict=True):
        assert isinstance(result, ImageError)
        assert result.code == "invalid_image"
        assert re.search(word, result.message)


def test_an_error_of_the_images_comes_after_the_results_before(kind: str) -> None:
    feed = Feed([b"1", b"2", b"3"])
    feed.error = OSError("the disk is gone")
    with pytest.raises(OSError, match="the disk is gone"):
        through(kind, feed, FakeServer({"m": told}))
    assert feed.results == 3


def test_leaving_early_waits_for_no_request_and_begins_no_more() -> None:
    opened, before = threading.Event(), threading.active_count()

    def closed(image: bytes | str) -> ImageResult:
        assert image == b"first" or opened.wait(60)
        return ImageResult(3, 1, 1, ())

    server = FakeServer({"m": closed})
    with Client("http://fake", transport=server) as client:
        images = [b"first", *[b"later"] * COUNT]
        for result in client.predict_many("m", images, in_flight=IN_FLIGHT):
            assert result == ImageResult(3, 1, 1, ())
            break
        assert not opened.is_set()
        opened.set()
        while threading.active_count() > before:
            time.sleep(0.01)
    assert len(server.requests) <= IN_FLIGHT


def test_a_program_that_leaves_early_ends() -> None:
    program = """
import threading
from fovea_client import Client, ImageResult
from fovea_client.testing import FakeServer

def told(image):
    assert image == b"first" or threading.Event().wait()
    return ImageResult(3, 1, 1, ())

client = Client("http://fake", transport=FakeServer({"m": told}))
next(client.predict_many("m", [b"first", b"second", b"third"], in_flight=2))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_wrong_channels_are_no_fault_of_the_images() -> None:
    with (
        Client("http://fake", transport=FakeServer({})) as client,
        pytest.raises(ValueError, match="'RGB'"),
    ):
        list(client.predict_many("m", [b"1"], channels="bgr"))  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 101])
def test_a_number_that_cannot_be_under_way_is_refused(count: int) -> None:
    with (
        Client("http://fake", transport=FakeServer({})) as client,
        pytest.raises(ValueError, match="100"),
    ):
        list(client.predict_many("m", [b"1"], in_flight=count))


class Closed(FakeServer):
    """Answers nobody until it is opened."""

    under_way = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.under_way += 1
        await self.opened.wait()
        return await super().handle_async_request(request)


def test_more_than_a_hundred_requests_wait_until_their_timeout() -> None:
    server = Closed({"m": told})

    async def run() -> None:
        server.opened = asyncio.Event()
        async with AsyncClient("http://fake", transport=server) as client:
            asked = [asyncio.create_task(client.predict("m", b"1")) for _ in range(100)]
            while server.under_way < 100:
                await asyncio.sleep(0.01)
            # With the same timeout, the hundred would give up first.
            client._policy = replace(client._policy, timeout=0.2)
            with pytest.raises(ConnectionFailed) as caught:
                await client.predict("m", b"1")
            assert not caught.value.unanswered
            assert server.under_way == 100
            server.opened.set()
            await asyncio.gather(*asked)
            assert (await client.predict("m", b"1")).image.width == 1

    asyncio.run(run())


# Both clients send some requests again, over real sockets, and others never.


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
