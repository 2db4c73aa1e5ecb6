"""Pictures of streams: drawn for those who look, over HTTP, for keys, and for slow readers."""

import json
import shutil
import socket
from contextlib import ExitStack
from itertools import islice

import av
import cv2
import httpx
import numpy as np
import pytest
from tests.built import build
from tests.e2e.results import AS_IT_IS, MODELS
from tests.keyed import key, until
from tests.server.streams.conftest import write_moving_scene
from tests.serving import start_server

from fovea_engines.build.plan import BuildPlan
from fovea_server.streams.cameras.overlay import draw_counts, draw_shapes, draw_trails
from fovea_server.streams.zones import Shape

pytestmark = pytest.mark.slow

FLAGS = ["--allow-url", "--url-allow-host=127.0.0.1"]
LINE, ZONE = "middle=0.5,0,0.5,1", "floor=0,0.6,1,0.6,1,1,0,1"
MARK = 255, 200, 0


@pytest.fixture(scope="module")
def repository(demo_repository, tmp_path_factory):
    copy = tmp_path_factory.mktemp("pictures") / "repository"
    shutil.copytree(demo_repository, copy)
    for name in ("embedding", "attributes"):
        source = MODELS[name].write(copy.parent / f"{name}.onnx")
        plan = {"preprocess": AS_IT_IS} | MODELS[name].given
        build(BuildPlan(source, name, copy, "onnxruntime", **plan))
    return copy


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """The file of keys, and a key that may do all, of a client that only looks, and of others."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    owner = key("add", "owner", "--keys", file, "--scope", "predict,control")
    looks = key("add", "looks", "--keys", file, "--scope", "predict,cameras")
    narrow = "--scope", "predict,control", "--model", "attr*", "--model", "embed*"
    other = key("add", "other", "--keys", file, *narrow)
    return file, {
        name: {"x-api-key": each}
        for name, each in zip(("owner", "looks", "other"), (owner, looks, other), strict=True)
    }


@pytest.fixture(scope="module")
def server(repository, keys, tmp_path_factory):
    flags = [*FLAGS, f"--keys={keys[0]}"]
    running = start_server(repository, tmp_path_factory.mktemp("log"), flags)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def client(server, keys):
    """The owner's."""
    with httpx.Client(base_url=f"{server.url}/v1", headers=keys[1]["owner"], timeout=60) as one:
        yield one


@pytest.fixture
def door(client, mjpeg):
    given = {"id": "door", "source": f"http://{mjpeg}/scene", "model": "digits"}
    answer = client.post(
        "/streams", json={**given, "lines": [LINE], "zones": [ZONE], "debounce": "0s"}
    )
    assert answer.status_code == 201, answer.text
    yield "door"
    client.delete("/streams/door")


def pixels(jpeg):
    return cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]


def marked(picture, x, y):
    """Return True if a pixel, or one beside it, has the colour of lines and zones."""
    part = picture[y - 2 : y + 3, x - 2 : x + 3].astype(int)
    return (abs(part - MARK).max(axis=-1) < 60).any()


def test_pictures_have_all_that_is_known(client, server, keys, door):
    until(lambda: client.get("/streams/door").json()["counts"]["floor"]["objects"])
    answer = client.get("/streams/door/image")
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["cache-control"] == "no-store"
    picture = pixels(answer.content)
    assert picture.shape == (480, 640, 3)
    assert marked(picture, 320, 30)
    assert marked(picture, 200, 288)
    assert not marked(picture, 200, 100)
    head = "".join(f"{name}: {each}\r\n" for name, each in keys[1]["looks"].items())
    with av.open(f"{server.url}/v1/streams/door/video", options={"headers": head}) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in islice(video.decode(0), 4)]
    assert {frame.shape for frame in frames} == {(480, 640, 3)}
    assert all(marked(frame, 320, 30) for frame in frames)
    assert (frames[0] != frames[-1]).any()


def parts(answer, count):
    """The JPEG files of a response of MJPEG, by their lengths."""
    held, found = b"", []
    for piece in answer.iter_bytes():
        held += piece
        while (end := held.find(b"\r\n\r\n")) >= 0:
            length = int(held[:end].rpartition(b"Content-Length: ")[2])
            if len(held) < end + 4 + length:
                break
            found.append(held[end + 4 : end + 4 + length])
            held = held[end + 4 + length :]
        if len(found) >= count:
            break
    return found


def test_slow_readers_cost_bounded_memory(client, server, keys, door):
    # The first images take memory of their own: of the model, the decoder and the encoder.
    with client.stream("GET", "/streams/door/video") as answer:
        parts(answer, 10)
    request = (
        "GET /v1/streams/door/video HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"x-api-key: {keys[1]['looks']['x-api-key']}\r\n\r\n"
    )
    before = server.memory_mb()
    with ExitStack() as slow:
        for _ in range(30):
            one = slow.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(request.encode())
            assert one.recv(12) == b"HTTP/1.1 200"
        with client.stream("GET", "/streams/door/video") as answer:
            size = sum(map(len, parts(answer, 40)))
        # Each would hold as much as was sent to the one that reads.
        assert server.memory_mb() - before < 30 * size / 1e6 / 2


def test_it_ends_with_its_stream_and_its_key(client, server, keys, door):
    gone = key("add", "gone", "--keys", keys[0])

    def ended(change, head, what="video"):
        with httpx.stream(
            "GET", f"{client.base_url}streams/door/{what}", headers=head, timeout=60
        ) as one:
            pieces = one.iter_bytes()
            next(pieces)
            change()
            for _ in pieces:
                pass

    def narrow_key():
        key("set", "gone", "--keys", keys[0], "--model", "yolo*")

    def widen_key():
        key("set", "gone", "--keys", keys[0], "--model", "*")
        until(lambda: client.get("/streams/door", headers={"x-api-key": gone}).status_code == 200)

    def remove_key():
        key("rm", "gone", "--keys", keys[0])

    # The server reads the file of keys anew every second.
    until(lambda: client.get("/streams/door", headers={"x-api-key": gone}).status_code == 200)
    for what in ("video", "events"):
        ended(narrow_key, {"x-api-key": gone}, what)
        widen_key()
    ended(remove_key, {"x-api-key": gone})
    ended(lambda: client.patch("/streams/door", json={"fps": 9}), keys[1]["looks"])
    ended(lambda: client.delete("/streams/door"), keys[1]["looks"])
    answer = client.get("/streams/door/video")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_a_stopped_stream_is_listed_and_starts_again(client, door):
    client.get("/streams/door/image")
    stopped = client.patch("/streams/door", json={"enabled": False}).json()
    assert (stopped["state"], stopped["enabled"]) == ("stopped", False)
    answer = client.get("/streams/door/image")
    assert answer.status_code == 404
    assert "it is stopped" in answer.json()["error"]["message"]
    with client.stream("GET", "/streams/door/video") as video:
        assert video.read() == b"--frame\r\n"
    assert client.patch("/streams/door", json={"enabled": None}).json()["state"] == "connecting"
    until(lambda: client.get("/streams/door").json()["state"] == "live")
    assert client.patch("/streams/door", json={"enabled": 1}).status_code == 422


def test_the_last_frame_of_a_video_stays(client, repository, tmp_path):
    write_moving_scene(tmp_path / "clip.avi", 5, 4)
    file = repository / "streams.toml"
    file.write_text(f'[clip]\nsource = "{tmp_path}/clip.avi"\nmodel = "digits"\n')
    until(lambda: client.get("/streams/clip").json().get("state") == "ended")
    ended = client.get("/streams/clip").json()
    assert (ended["of_file"], ended["age_ms"]) == (True, None)
    with client.stream("GET", "/streams/clip/video") as video:
        assert video.read().count(b"Content-Length") == 1
    assert pixels(client.get("/streams/clip/image").content).shape == (480, 640, 3)
    file.unlink()
    until(lambda: client.get("/streams/clip").status_code == 404)


def test_a_key_sees_the_streams_of_its_models_and_changes_none(client, keys, door):
    def ask(name, method, path, **given):
        return client.request(method, path, headers=keys[1][name], **given)

    assert [each["id"] for each in ask("looks", "GET", "/streams").json()["streams"]] == ["door"]
    assert ask("looks", "GET", "/streams/door/image").status_code == 200
    assert ask("other", "GET", "/streams").json() == {"streams": []}
    for path in (
        "/streams/door",
        "/streams/door/image",
        "/streams/door/video",
        "/streams/door/events",
    ):
        assert ask("other", "GET", path).status_code == 404
        assert client.get(path, headers={"x-api-key": "wrong"}).status_code == 401
    for name, status in (("looks", 403), ("other", 404)):
        assert ask(name, "PATCH", "/streams/door", json={"enabled": False}).status_code == status
        assert ask(name, "DELETE", "/streams/door").status_code == status
    assert json.dumps(keys[1]) not in client.get("/streams/door").text


def test_a_key_changes_the_streams_of_its_models(client, keys, door, mjpeg):
    mine = {"headers": keys[1]["other"]}
    given = {"id": "mine", "source": f"http://{mjpeg}/scene", "model": "attributes"}
    assert client.post("/streams", json={**given, "model": "digits"}, **mine).status_code == 403
    assert client.post("/streams", json=given, headers=keys[1]["looks"]).status_code == 403
    assert client.post("/streams", json=given, **mine).status_code == 201
    # Not only of objects: pictures have the classes.
    until(lambda: client.get("/streams/mine", **mine).json()["frames"]["answered"])
    with_text, without = (
        pixels(client.get(f"/streams/{name}/image").content)[:30, :60] for name in ("mine", "door")
    )
    assert np.abs(with_text.astype(int) - without).max() > 60
    assert client.patch("/streams/mine", json={"fps": 2}, **mine).json()["fps"] == 2
    assert client.patch("/streams/mine", json={"model": "digits"}, **mine).status_code == 403
    assert [each["id"] for each in client.get("/streams", **mine).json()["streams"]] == ["mine"]
    assert client.delete("/streams/door", **mine).status_code == 404
    assert client.delete("/streams/mine", **mine).status_code == 200
    assert client.get("/streams/door").status_code == 200


def test_a_model_of_which_nothing_is_seen_is_refused(client, keys, mjpeg):
    given = {"id": "vectors", "source": f"http://{mjpeg}/scene", "model": "embedding"}
    answer = client.post("/streams", json=given)
    assert answer.status_code == 422
    assert "model 'embedding', whose task is embed" in answer.json()["error"]["message"]
    assert client.get("/streams/vectors").status_code == 404


def test_what_is_drawn():
    canvas = np.full((400, 600, 3), 90, np.uint8)
    draw_trails(canvas, {1: [(50.4, 50), (150, 50)], 2: [(50, 80), (150.2, 80)]})
    first, second = canvas[50, 100], canvas[80, 100]
    assert (first != 90).any()
    assert abs(first.astype(int) - second).max() > 60
    shapes = [
        Shape.parse("line", "door=0.5,0.9,0.5,0.1"),
        Shape.parse("zone", "yard=9,200,90,200,90,380"),
    ]
    draw_shapes(canvas, shapes)
    assert marked(canvas, 300, 100)
    assert marked(canvas, 50, 200)
    # Upwards, left is to the left.
    assert marked(canvas, 290, 200)
    assert not marked(canvas, 312, 195)
    assert tuple(canvas[230, 80]) != (90, 90, 90)
    before = canvas.copy()
    draw_counts(canvas, shapes, {"door": {"in": 3, "out": 1}, "yard": {"objects": 2}})
    changed = (canvas != before).any(axis=-1)
    assert changed[205:240, 250:350].any()
    assert changed[202:235, 20:90].any()
    assert not changed[:190].any()


@pytest.mark.parametrize(("width", "height"), [(600, 400), (1920, 1080)])
def test_counts_are_white_on_black_and_as_large_as_the_picture_needs(width, height):
    canvas = np.full((height, width, 3), 255, np.uint8)
    line = Shape.parse("line", "door=0.5,0.9,0.5,0.1")
    draw_counts(canvas, [line], {"door": {"in": 3, "out": 1}})
    rows, columns = np.nonzero((canvas != 255).any(axis=-1))
    label = canvas[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert 0.5 < (label < 60).all(axis=-1).mean() < 0.95
    assert len(label) > 0.03 * height


@pytest.mark.parametrize("height", [400, 60])
def test_counts_at_one_place_do_not_cover_each_other(height):
    """A line through a zone, as people draw a door and its mat: each name is legible."""
    zone, line = "mat=0.3,0.45,0.7,0.45,0.7,0.9,0.3,0.9", "door=0.3,0.45,0.7,0.45"
    one, both = (
        [Shape.parse("zone", zone)],
        [Shape.parse("zone", zone), Shape.parse("line", line)],
    )
    written = []
    for shapes in (one, both, both[1:]):
        canvas = np.full((height, 400, 3), 90, np.uint8)
        draw_counts(canvas, shapes, {"door": {"in": 3}, "mat": {"objects": 2}})
        written.append((canvas != 90).any(axis=-1))
    alone, together, other = written
    assert (together & alone).sum() == alone.sum()
    assert together.sum() == alone.sum() + other.sum()
