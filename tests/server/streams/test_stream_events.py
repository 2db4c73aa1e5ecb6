"""Events of a real server: lines of streams.toml, followed by clients, over a restart."""

import asyncio
import json
import shutil
import socket
import time

import httpx
import orjson
import pytest
from tests.server.streams.conftest import write_moving_scene
from tests.server.streams.receiver import Receiver, receiving
from tests.serving import start_server
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from fovea_server.streams.feature import _event_stream

pytestmark = pytest.mark.slow

LINE = "middle=0.5,0,0.5,1"
WISH = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """The demo's scene, which moves to the right and leaves the picture."""
    path = tmp_path_factory.mktemp("clip") / "clip.avi"
    write_moving_scene(path, 60, 4)
    return path


@pytest.fixture(scope="module")
def receiver():
    with receiving(one := Receiver()) as port:
        one.port = port
        yield one


@pytest.fixture(scope="module")
def repository(demo_repository, clip, receiver, tmp_path_factory):
    copy = tmp_path_factory.mktemp("events") / "repository"
    shutil.copytree(demo_repository, copy)
    # The events of an hour, for clients that read slowly.
    folder = copy / ".streams" / "long"
    folder.mkdir(parents=True)
    first, text = 1_700_000_000_000, "x" * 900
    with (folder / f"events-{first}.jsonl").open("wb") as file:
        for number in range(first, first + 4500):
            file.write(orjson.dumps({"event": number, "kind": "count", "text": text}) + b"\n")
    (copy / "streams.toml").write_text(
        f'[gate]\nsource = "{clip}"\nmodel = "digits"\nlines = ["{LINE}"]\ndebounce = "100ms"\n'
        f'zones = ["all=0,0,1,0,1,1,0,1"]\nevent_images = 5\n'
        f'webhook = "http://user:s3cret@127.0.0.1:{receiver.port}/t0ken"\n'
        f'webhook_secret = "whsec_c2VjcmV0"\n'
        f'[long]\nsource = "{clip}"\nmodel = "digits"\nevents = ["lost"]\n'
        f'[quiet]\nsource = "{clip}"\nmodel = "digits"\nevents = ["crossed"]\n'
        f'[plain]\nsource = "{clip}"\nmodel = "digits"\n'
    )
    return copy


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    running = start_server(repository, tmp_path_factory.mktemp("log"), ["--allow-url"])
    yield running
    assert running.stop() == 0


def stream(server, name="gate"):
    return httpx.get(f"{server.url}/v1/streams/{name}").json()


@pytest.fixture(scope="module")
def ended(server):
    """The stream's document when its video is over, and all is sent."""
    until = time.monotonic() + 60
    while True:
        found = stream(server)
        if found["state"] == "ended" and not found["sending"]["webhook"]["waiting"]:
            return found
        assert time.monotonic() < until, found
        time.sleep(0.1)


def lines_of(server, name="gate", after=0, count=None):
    """The events of a stream as JSON lines, as many as there are."""
    events = []
    address = f"{server.url}/v1/streams/{name}/events"
    head = {"accept": "application/x-ndjson", "last-event-id": str(after)}
    with httpx.stream("GET", address, headers=head, timeout=30) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            events.append(json.loads(line))
            if count is not None and len(events) >= count:
                return events
    return events


def test_what_moves_is_counted_and_told_once(server, ended, receiver):
    events = receiver.events
    crossed = [each for each in events if each["kind"] == "crossed"]
    ways = [each["direction"] for each in crossed]
    assert len(crossed) > 1
    assert set(ways) == {"in"} or set(ways) == {"out"}
    assert ended["counts"]["middle"] == {"in": ways.count("in"), "out": ways.count("out")}
    assert ended["counts"]["all"] == {"objects": 0}
    numbers = [each["event"] for each in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert lines_of(server, count=len(events)) == events
    assert lines_of(server, after=-3, count=3) == events[-3:]
    assert lines_of(server, after=-(10**9), count=len(events)) == events
    kinds = {each["kind"] for each in events}
    assert kinds == {"appeared", "lost", "entered", "left", "crossed", "count"}
    # Listings and the log have no secret, and the metrics have the receiver.
    assert ended["webhook"].startswith("http://127.0.0.1")
    text = httpx.get(f"{server.url}/v1/streams").text + server.log.read_text()
    assert not [word for word in ("s3cret", "whsec_", "t0ken") if word in text]
    text = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
    of = 'receiver="webhook",stream="gate"'
    for sample in (
        f"fovea_stream_events_waiting{{{of}}} 0",
        f"fovea_stream_sink_up{{{of}}} 1",
        f'fovea_stream_events_total{{events="sent",{of}}} {len(events)}',
        f'fovea_stream_events_total{{events="missed",{of}}} 0',
        *(
            f'fovea_stream_crossings_total{{direction="{way}",line="middle",stream="gate"}} '
            f"{ways.count(way)}"
            for way in ("in", "out")
        ),
        'fovea_stream_zone_objects{stream="gate",zone="all"} 0',
    ):
        assert sample in text


def test_server_sent_events_go_on_behind_the_last(server, ended, receiver):
    events = receiver.events
    third = events[2]["event"]
    address = f"{server.url}/v1/streams/gate/events"
    found = []
    with httpx.stream(
        "GET", address, headers={"Last-Event-ID": str(third)}, params={"kinds": "crossed,left"}
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        wanted = [each for each in events[3:] if each["kind"] in ("crossed", "left")]
        block = {}
        for line in answer.iter_lines():
            key, _, value = line.partition(": ")
            if key and value:
                block[key] = value
            elif block.get("id"):
                found.append((int(block["id"]), block["event"], json.loads(block["data"])))
                block = {}
                if len(found) == len(wanted):
                    break
    assert found == [(each["event"], each["kind"], each) for each in wanted]


def followed(server, name="gate", **how):
    return connect(f"ws://127.0.0.1:{server.port}/v1/streams/{name}/events", **how)


def test_websockets_go_on_behind_the_last(server, ended, receiver):
    events = receiver.events
    third = events[2]["event"]
    wanted = [each for each in events[3:] if each["kind"] in ("crossed", "left")]
    query = f"gate/events?kinds=crossed,left&after={third}"
    with connect(f"ws://127.0.0.1:{server.port}/v1/streams/{query}") as line:
        # A client has nothing to say, and may.
        line.send("x" * 100_000)
        line.send(b"y")
        assert [json.loads(line.recv(60)) for _ in wanted] == wanted
    head = {"Last-Event-ID": str(third), "Origin": server.url}
    with followed(server, additional_headers=head) as line:
        assert [json.loads(line.recv(60)) for _ in events[3:]] == events[3:]
    foreign = {"Origin": "https://evil.example"}
    with pytest.raises(InvalidStatus) as refused, followed(server, additional_headers=foreign):
        pass
    assert refused.value.response.status_code == 403


def test_a_stream_without_an_event_is_followed(server):
    """From numbers in front of all events, and behind them."""
    for after in ("0", "9" * 18):
        head = {"Last-Event-ID": after}
        address = f"{server.url}/v1/streams/quiet/events"
        for media in ("text/event-stream", "application/x-ndjson"):
            with httpx.stream("GET", address, headers={**head, "Accept": media}) as answer:
                assert answer.status_code == 200
                assert stream(server, "quiet")["id"] == "quiet"
        with followed(server, "quiet", additional_headers=head) as line:
            assert line.ping().wait(120)
            assert stream(server, "quiet")["id"] == "quiet"


def test_comments_keep_a_quiet_connection_open():
    async def sent(*, lines):
        async def followed():
            for _ in range(31):
                yield []

        return [piece async for piece in _event_stream(followed(), lines)]

    assert asyncio.run(sent(lines=False)) == [b": events\n\n", b":\n\n", b":\n\n"]
    assert asyncio.run(sent(lines=True)) == [b""]


def test_pictures_of_events(server, ended, receiver):
    names = [each["image"] for each in receiver.events if "image" in each]
    address = f"{server.url}/v1/streams/gate/events/images"
    answers = [httpx.get(f"{address}/{name}") for name in dict.fromkeys(names)]
    kept = [each for each in answers if each.status_code == 200]
    assert len(kept) == 5
    assert kept[0].content.startswith(b"\xff\xd8")
    assert kept[0].headers["content-type"] == "image/jpeg"
    assert answers[0].status_code == 404
    for name in ("..%2f..%2fstreams.toml", "streams.toml", "0.jpg", f"{0:0300}.jpg"):
        assert httpx.get(f"{address}/{name}").status_code == 404


def test_clients_that_read_slowly_cost_bounded_memory(server, ended):
    before, slow = server.memory_mb(), []
    for wish in (b"", WISH) * 15:
        one = socket.create_connection(("127.0.0.1", server.port))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = b"GET /v1/streams/long/events HTTP/1.1\r\nHost: 127.0.0.1\r\nLast-Event-ID: 0\r\n"
        one.sendall(head + wish + b"\r\n")
        slow.append(one)
    # All of them have begun, and one that reads has gone through four megabytes meanwhile.
    begun = [one.recv(12) for one in slow]
    assert begun == [b"HTTP/1.1 200", b"HTTP/1.1 101"] * 15
    assert len(lines_of(server, "long", count=4500)) == 4500
    # Each would hold four megabytes.
    assert server.memory_mb() - before < 60
    for one in slow:
        one.close()


@pytest.mark.parametrize("carrier", ["http", "ws"])
@pytest.mark.parametrize(
    ("path", "head", "status", "words"),
    [
        ("plain/events", {}, 404, "records no events: set lines"),
        ("nobody/events", {}, 404, "unknown stream 'nobody'"),
        ("gate/events?kinds=left,croosed", {}, 422, "did you mean 'crossed'?"),
        ("gate/events", {"Last-Event-ID": "x"}, 422, "must be the number of an event"),
        ("gate/events", {"Last-Event-ID": "9" * 30}, 422, "must be the number of an event"),
    ],
)
def test_requests_that_are_wrong(server, carrier, path, head, status, words):
    address = f"{carrier}://127.0.0.1:{server.port}/v1/streams/{path}"
    if carrier == "ws":
        with pytest.raises(InvalidStatus) as refused, connect(address, additional_headers=head):
            pass
        answer = refused.value.response
        text = answer.body.decode()
    else:
        answer = httpx.get(address, headers=head)
        text = answer.text
    assert (answer.status_code, words in text) == (status, True), text


def test_clients_name_no_receivers(server):
    given = {"id": "mine", "source": "rtsp://a/b", "model": "digits"}
    for key, value in (("webhook", "http://127.0.0.1:1/"), ("mqtt", "mqtt://a")):
        answer = httpx.post(f"{server.url}/v1/streams", json={**given, key: value})
        assert answer.status_code == 400
        assert "define the stream in streams.toml" in answer.text
    answer = httpx.post(f"{server.url}/v1/streams", json={**given, "lines": ["door=1"]})
    assert answer.status_code == 422
    assert "door=0.1,0.6,0.9,0.6" in answer.text


def test_a_restart_tells_nothing_twice(repository, clip, receiver, ended, server, tmp_path):
    """A server ends while a client follows, and another goes on in the same folder."""
    address = f"{server.url}/v1/streams/gate/events"
    with followed(server) as line, httpx.stream("GET", address, timeout=30) as following:
        began = time.monotonic()
        server.process.send_signal(15)
        assert following.read() == b": events\n\n"
        with pytest.raises(ConnectionClosed) as closed:
            line.recv(30)
        assert closed.value.rcvd.code == 1012
        assert server.process.wait(30) == 0
        assert time.monotonic() - began < 30
    sent = len(receiver.taken)
    again = start_server(repository, tmp_path, ["--allow-url"])
    try:
        until = time.monotonic() + 60
        while stream(again)["state"] != "ended" or stream(again)["sending"]["webhook"]["waiting"]:
            assert time.monotonic() < until
            time.sleep(0.1)
        numbers = [each["event"] for each in receiver.events]
        assert len(numbers) == 2 * sent
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        # What the first server told is still there for a client that was away.
        assert lines_of(again, after=numbers[sent - 3], count=5) == receiver.events[sent - 2 :][:5]
    finally:
        assert again.stop() == 0
