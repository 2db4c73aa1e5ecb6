"""Events to mosquitto, a real broker: state that stays, discovery, last will, and its restarts."""

import asyncio
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import aiomqtt
import httpx
import orjson
import pytest
from tests.server.streams.conftest import mjpeg_camera
from tests.server.streams.walks import feed_in, numbers, play, until
from tests.serving import free_ports, start_server
from tests.system import program

from fovea_server.streams.events import mqtt, sender

pytestmark = pytest.mark.real

USER, PASSWORD = "fovea", "p@ss word"
ADDRESS = "mqtt://fovea:p%40ss%20word@127.0.0.1:{port}/home"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(sender, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(sender, "_LONGEST_WAIT_S", 0.05)
    monkeypatch.setattr(sender, "_BEAT_S", 0.05)
    monkeypatch.setattr(mqtt, "_TIMEOUT_S", 1.0)


@pytest.fixture
def port():
    return free_ports(1)[0]


@contextmanager
def broker(port, folder):
    """mosquitto with a password."""
    binary = program("mosquitto", "/usr/sbin/mosquitto", package="mosquitto")
    passwords = folder / "passwords"
    if not passwords.exists():
        command = [program("mosquitto_passwd", package="mosquitto"), "-b", "-c", str(passwords)]
        subprocess.run([*command, USER, PASSWORD], check=True, capture_output=True)
    config = folder / "mosquitto.conf"
    # As root it becomes a user of its own, who may not read the folder.
    config.write_text(
        f"listener {port} 127.0.0.1\nuser root\npassword_file {passwords}\n"
        f"persistence true\npersistence_location {folder}/\nmax_queued_messages 0\n"
    )
    process = subprocess.Popen([binary, "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


async def listen(port, messages, ready=None, name=None):
    """Collect all messages, and come back where the broker is away; `ready` when it is told.

    With a name, the broker goes on where it stopped. It repeats messages under their old numbers
    where it ended before it read that they had arrived.
    """
    given, numbered = {"username": USER, "password": PASSWORD}, set()
    if name is not None:
        given |= {"identifier": name, "clean_session": False}
    while True:
        try:
            async with aiomqtt.Client("127.0.0.1", port, **given) as client:
                await client.subscribe("#", qos=1)
                if ready is not None:
                    ready.set()
                async for message in client.messages:
                    key = (message.mid, message.payload)
                    if name is not None and key in numbered:
                        continue
                    numbered.add(key)
                    messages.append((str(message.topic), bytes(message.payload), message.retain))
        except aiomqtt.MqttError:
            await asyncio.sleep(0.05)


def events_in(messages):
    return [orjson.loads(p)["event"] for t, p, _ in messages if t == "home/gate/events"]


def last(messages, topic):
    return next((payload for each, payload, _ in reversed(messages) if each == topic), None)


def test_events_counts_and_discovery(tmp_path, port):
    async def run():
        messages, late = [], []
        listening = asyncio.create_task(listen(port, messages))
        feed = feed_in(tmp_path / "log", mqtt=ADDRESS.format(port=port), zones="yard=0,0,1,0,1,1")
        await until(lambda: last(messages, "home/gate/status") == b"online")
        await until(lambda: last(messages, "home/gate/counts/door") == b'{"in":0,"out":0}')
        play(feed)
        await until(lambda: len(events_in(messages)) == len(numbers(feed.log)))
        assert events_in(messages) == numbers(feed.log)
        counts = feed.document["counts"]
        # One who comes later has the newest state at once.
        following = asyncio.create_task(listen(port, late))
        await until(lambda: last(late, "home/gate/counts/door"))
        assert orjson.loads(last(late, "home/gate/counts/door")) == counts["door"]
        assert sum(counts["door"].values()) > 3
        assert not events_in(late)
        name = "homeassistant/sensor/fovea_gate/door_in/config"
        await until(lambda: last(late, name))
        sensor = orjson.loads(last(late, name))
        assert sensor["state_topic"] == "home/gate/counts/door"
        assert sensor["availability_topic"] == "home/gate/status"
        assert sensor["value_template"] == "{{ value_json['in'] }}"
        assert all(retained for topic, _, retained in late if topic != "home/gate/status")
        feed.over()
        await until(lambda: last(messages, "home/gate/status") == b"offline")
        await feed.stop()
        for task in (listening, following):
            task.cancel()
        await asyncio.wait([listening, following])

    with broker(port, tmp_path):
        asyncio.run(run())


def test_a_broker_that_was_away_gets_each_event_once(tmp_path, port):
    async def run():
        messages, ready = [], asyncio.Event()
        # The broker keeps what is for this client while it is not connected yet.
        listening = asyncio.create_task(listen(port, messages, ready, "listener"))
        with broker(port, tmp_path):
            await ready.wait()
        feed = feed_in(tmp_path / "log", mqtt=ADDRESS.format(port=port))
        for seed in (1, 2):
            play(feed, seed)
            await until(lambda: feed.document["sending"]["mqtt"]["reason"])
            with broker(port, tmp_path):
                await until(lambda: len(events_in(messages)) >= len(numbers(feed.log)))
                assert events_in(messages) == numbers(feed.log)
                await until(lambda: last(messages, "home/gate/status") == b"online")
            # That the connection to the broker is lost is noticed without an event.
            await until(lambda: feed.document["sending"]["mqtt"]["reason"])
        assert len(events_in(messages)) > 40
        await feed.stop()
        listening.cancel()
        await asyncio.wait([listening])

    asyncio.run(run())


def test_a_server_that_is_killed_is_offline(tmp_path, port):
    async def run():
        messages = []
        listening = asyncio.create_task(listen(port, messages))
        command = [
            sys.executable,
            "-m",
            "tests.server.streams.walks",
            str(tmp_path / "log"),
            "mqtt",
        ]
        process = subprocess.Popen(
            [*command, ADDRESS.format(port=port)], cwd=Path(__file__).parents[3]
        )
        await until(lambda: last(messages, "home/gate/status") == b"online")
        process.kill()
        process.wait()
        await until(lambda: last(messages, "home/gate/status") == b"offline")
        listening.cancel()
        await asyncio.wait([listening])

    with broker(port, tmp_path):
        asyncio.run(run())


def test_the_status_is_that_of_the_camera_and_the_model(demo_repository, tmp_path, port):
    repository = tmp_path / "repository"
    shutil.copytree(demo_repository, repository)
    [camera] = free_ports(1)
    (repository / "streams.toml").write_text(
        f'[gate]\nsource = "http://127.0.0.1:{camera}/video"\nmodel = "digits"\n'
        f'lines = ["door=0.5,0,0.5,1"]\nmqtt = "{ADDRESS.format(port=port)}"\n'
    )
    flags = ["--allow-url", "--url-allow-host=127.0.0.1", "--model-control-mode=explicit"]

    async def run():
        messages = []
        listening = asyncio.create_task(listen(port, messages))

        async def status(wanted):
            await until(lambda: last(messages, "home/gate/status") == wanted)

        # Its camera is not there yet.
        server = await asyncio.to_thread(
            start_server, repository, tmp_path, [*flags, "--load-model=digits"]
        )
        models = f"{server.url}/v2/repository/models/digits"
        try:
            await status(b"offline")
            with mjpeg_camera(camera):
                await status(b"online")
            await status(b"offline")
            with mjpeg_camera(camera):
                await status(b"online")
                assert (await asyncio.to_thread(httpx.post, f"{models}/unload")).is_success
                await status(b"offline")
                assert (await asyncio.to_thread(httpx.post, f"{models}/load")).is_success
                await status(b"online")
        finally:
            assert await asyncio.to_thread(server.stop) == 0
        listening.cancel()
        await asyncio.wait([listening])

    with broker(port, tmp_path):
        asyncio.run(run())


def test_no_broker_and_a_wrong_password_are_reasons_without_it(tmp_path, port):
    async def run():
        feed = feed_in(tmp_path / "log", mqtt=f"mqtt://fovea:secret@127.0.0.1:{port}")

        def reason():
            return feed.document["sending"]["mqtt"]["reason"]

        await until(lambda: "the connection was refused" in reason())
        with broker(port, tmp_path):
            await until(lambda: "rejected the connection" in reason())
            assert "secret" not in reason()
            await feed.stop()

    asyncio.run(run())
