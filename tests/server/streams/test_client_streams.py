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


def results(kind, url, secret, images, model="digits", timeout=60, **how):
    """What a client of either kind finds, as it is taken."""
    if kind is Client:
        with Client(url, api_key=secret, timeout=timeout) as client:
            yield from client.stream(model, images, **how)
        return
    with asyncio.Runner() as runner:
        client = AsyncClient(url, api_key=secret, timeout=timeout)
        found = client.stream(model, images, **how)

        async def step():
            return [each] if (each := await anext(found, None)) is not None else []

        async def close():
            await found.aclose()
            await client.aclose()

        try:
            while each := runner.run(step()):
                yield from each
        finally:
            runner.run(close())


both = pytest.mark.parametrize("kind", [Client, AsyncClient])


@both
def test_frames_are_found_as_by_predict(kind, server, secret):
    with Client(server.url, api_key=secret[1]) as client:
        wanted = [client.predict("digits", scene, conf=0.4).image for scene in SCENES]
    pixels = cv2.imread(str(SCENES[0]))
    frames = [SCENES[0], SCENES[1].read_bytes(), b"bad", "missing.jpg", "http://a/b.jpg", pixels]
    found = list(results(kind, server.url, secret[1], iter(frames), conf=0.4, channels="BGR"))
    assert found[:2] == wanted
    assert found[0].source() == SCENES[0].read_bytes()
    assert [each.code for each in found[2:5]] == ["invalid_image"] * 3
    assert "image URLs" in found[4].message
    assert len(found[5].detections) == len(wanted[0].detections)


@both
def test_ids_are_of_the_stream(kind, server, secret):
    for _ in range(2):
        given = {"track": "bytetrack", "in_flight": 8}
        found = list(results(kind, server.url, secret[1], [SCENES[0]] * 4, **given))
        ids = [[one.track_id for one in each.detections] for each in found]
        assert ids[-1] == list(range(1, len(ids[-1]) + 1))


@both
def test_a_result_comes_before_the_next_frame(kind, server, secret):
    """A camera's next frame may take a while."""
    told = threading.Event()

    def camera():
        yield SCENES[0]
        assert told.wait(60)
        yield SCENES[1]

    async def asked():
        yield SCENES[0]
        while not told.is_set():
            await asyncio.sleep(0.01)
        yield SCENES[1]

    frames = camera() if kind is Client else asked()
    found = results(kind, server.url, secret[1], frames)
    assert next(found).detections
    told.set()
    assert [len(each.detections) > 0 for each in found] == [True]


@both
def test_frames_are_taken_as_results_are(kind, server, secret):
    taken = []

    def camera():
        while True:
            taken.append(None)
            yield SCENES[0]

    found = results(kind, server.url, secret[1], camera(), in_flight=2)
    for number in range(5):
        next(found)
        assert len(taken) <= 3 + number
    found.close()


@both
def test_an_error_of_the_frames_comes_in_its_turn(kind, server, secret):
    def camera():
        yield SCENES[0]
        raise OSError("the lens is broken")

    with pytest.raises(OSError, match="the lens"):
        list(results(kind, server.url, secret[1], camera()))


@both
def test_what_the_server_refuses(kind, server, secret):
    def refused(secret, **how):
        with pytest.raises(ServerError) as raised:
            list(results(kind, server.url, secret, [SCENES[0]], **how))
        return raised.value.status, raised.value.code

    assert refused("wrong") == (401, "unauthenticated")
    assert refused(secret[1], model="nobody") == (404, "not_found")
    assert refused(secret[1], conf=2) == (422, "invalid_option")
    if kind is Client:
        found = list(results(kind, server.url, secret[2], [SCENES[0]] * 3))
        assert not isinstance(found[0], ImageError)
        assert [each.code for each in found[1:]] == ["rate_limited"] * 2


@both
def test_arguments_that_are_wrong(kind, server, secret):
    client = kind(server.url)
    for error, words, how in (
        (ValueError, "in_flight must be from 1 to 8", {"in_flight": 9}),
        (ValueError, "option `frame`", {"frame": 1}),
        (ValueError, "channels", {"channels": "GBR"}),
        (TypeError, "unknown option confidence", {"confidence": 1}),
    ):
        with pytest.raises(error, match=words):
            client.stream("digits", [], **how)


@both
def test_without_the_package(kind, server, monkeypatch):
    monkeypatch.setitem(sys.modules, "websockets", None)
    with pytest.raises(ImportError, match="pip install websockets"):
        kind(server.url).stream("digits", [])


@both
def test_there_is_no_server_or_it_stops(kind, demo_repository, tmp_path):
    server = start_server(demo_repository, tmp_path)
    frame = np.zeros((40, 40, 3), np.uint8)

    def camera():
        yield frame
        assert server.stop() == 0
        yield frame
        yield frame

    with pytest.raises(ConnectionFailed, match="the server is stopping"):
        list(results(kind, server.url, "", camera(), in_flight=1))
    with pytest.raises(ConnectionFailed, match="is a server running there"):
        list(results(kind, server.url, "", []))
