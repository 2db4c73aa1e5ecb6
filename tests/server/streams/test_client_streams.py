"""`stream` of both clients, against real servers."""

import asyncio
import sys
import threading

import cv2
import numpy as np
import pytest
from tests.conftest import DEMO
from tests.keyed import key
from tests.serving import start_server

from fovea_client import AsyncClient, Client, ConnectionFailed, ImageError, ServerError

pytestmark = pytest.mark.slow

SCENES = [DEMO / "scene-1.jpg", DEMO / "scene-2.jpg"]


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    return (
        file,
        key("add", "camera", "--keys", file),
        key("add", "slow", "--rate", "1/h", "--keys", file),
    )


@pytest.fixture(scope="module")
def server(demo_repository, secret, tmp_path_factory):
    flags = ["--keys", str(secret[0])]
    running = start_server(demo_repository, tmp_path_factory.mktemp("log"), flags)
    yield running
    assert running.stop() == 0


def streamed(kind, server, secret, images, model="digits", url=None, **how):
    """All that a client of either kind finds."""
    url, timeout = url or server.url, how.pop("timeout", 60)
    if kind is Client:
        with Client(url, api_key=secret, timeout=timeout) as client:
            return list(client.stream(model, images, **how))

    async def run():
        async with AsyncClient(url, api_key=secret, timeout=timeout) as client:
            return [found async for found in client.stream(model, images, **how)]

    return asyncio.run(run())


both = pytest.mark.parametrize("kind", [Client, AsyncClient])


@both
def test_frames_are_found_as_by_predict(kind, server, secret):
    with Client(server.url, api_key=secret[1]) as client:
        wanted = [client.predict("digits", scene, conf=0.4).image for scene in SCENES]
    pixels = cv2.imread(str(SCENES[0]))
    frames = [SCENES[0], SCENES[1].read_bytes(), b"bad", "missing.jpg", "http://a/b.jpg", pixels]
    found = streamed(kind, server, secret[1], iter(frames), conf=0.4, channels="BGR")
    assert found[:2] == wanted
    assert found[0].source() == SCENES[0].read_bytes()
    assert [each.code for each in found[2:5]] == ["invalid_image"] * 3
    assert "not their addresses" in found[4].message
    assert len(found[5].detections) == len(wanted[0].detections)


@both
def test_ids_are_of_the_stream(kind, server, secret):
    for _ in range(2):
        found = streamed(kind, server, secret[1], [SCENES[0]] * 4, track="bytetrack", in_flight=8)
        ids = [[one.track_id for one in each.detections] for each in found]
        assert ids[-1] == list(range(1, len(ids[-1]) + 1))


def test_a_result_comes_before_the_next_frame(server, secret):
    """A camera's next frame may take a while."""
    told = threading.Event()

    def camera():
        yield SCENES[0]
        assert told.wait(60)
        yield SCENES[1]

    with Client(server.url, api_key=secret[1]) as client:
        found = client.stream("digits", camera())
        assert next(found).detections
        told.set()
        assert [len(each.detections) > 0 for each in found] == [True]


def test_a_result_comes_before_the_next_frame_async(server, secret):
    async def run():
        told = asyncio.Event()

        async def camera():
            yield SCENES[0]
            await told.wait()
            yield SCENES[1]

        async with AsyncClient(server.url, api_key=secret[1]) as client:
            found = client.stream("digits", camera())
            assert (await anext(found)).detections
            told.set()
            return [each async for each in found]

    assert len(asyncio.run(run())) == 1


@both
def test_frames_are_taken_as_results_are(kind, server, secret):
    taken = []

    def camera():
        while True:
            taken.append(None)
            yield SCENES[0]

    def most(results):
        assert len(taken) <= 2 + results

    if kind is Client:
        with Client(server.url, api_key=secret[1]) as client:
            found = client.stream("digits", camera(), in_flight=2)
            for number in range(5):
                next(found)
                most(number + 1)
            found.close()
        return

    async def run():
        async with AsyncClient(server.url, api_key=secret[1]) as client:
            found = client.stream("digits", camera(), in_flight=2)
            for number in range(5):
                await anext(found)
                most(number + 1)
            await found.aclose()

    asyncio.run(run())


@both
def test_an_error_of_the_frames_comes_in_its_turn(kind, server, secret):
    found = []

    def camera():
        yield SCENES[0]
        raise OSError("the lens is broken")

    if kind is Client:
        with (
            Client(server.url, api_key=secret[1]) as client,
            pytest.raises(OSError, match="the lens"),
        ):
            found.extend(client.stream("digits", camera()))
    else:
        with pytest.raises(OSError, match="the lens"):
            streamed(kind, server, secret[1], camera())


@both
def test_what_the_server_refuses(kind, server, secret):
    def told(secret, **how):
        with pytest.raises(ServerError) as refused:
            streamed(kind, server, secret, [SCENES[0]], **how)
        return refused.value.status, refused.value.code

    assert told("wrong") == (401, "unauthenticated")
    assert told(secret[1], model="nobody") == (404, "not_found")
    assert told(secret[1], conf=2) == (422, "invalid_option")
    if kind is Client:
        found = streamed(kind, server, secret[2], [SCENES[0]] * 3)
        assert not isinstance(found[0], ImageError)
        assert [each.code for each in found[1:]] == ["rate_limited"] * 2


@both
def test_arguments_that_are_wrong(kind, server, secret):
    client = kind(server.url)
    for error, words, how in (
        (ValueError, "in_flight is 1 to 8", {"in_flight": 9}),
        (ValueError, "leave frame out", {"frame": 1}),
        (ValueError, "channels", {"channels": "GBR"}),
        (TypeError, "no option confidence", {"confidence": 1}),
    ):
        with pytest.raises(error, match=words):
            client.stream("digits", [], **how)


@both
def test_there_is_no_server(kind, server, secret):
    with pytest.raises(ConnectionFailed, match="is a server running there"):
        streamed(kind, server, secret[1], [], url="http://127.0.0.1:9")


@both
def test_without_the_package(kind, server, monkeypatch):
    monkeypatch.setitem(sys.modules, "websockets", None)
    with pytest.raises(ImportError, match="pip install websockets"):
        kind(server.url).stream("digits", [])


@both
def test_the_server_stops(kind, demo_repository, tmp_path):
    server = start_server(demo_repository, tmp_path)
    frames = np.zeros((40, 40, 3), np.uint8)

    def camera():
        yield frames
        assert server.stop() == 0
        yield frames
        yield frames

    with pytest.raises(ConnectionFailed, match="the server stops"):
        streamed(kind, server, "", camera(), in_flight=1)
