"""The log of events, and webhooks: none is lost, none comes twice, whatever the receiver does."""

import asyncio
import base64
import hashlib
import hmac
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import orjson
import pytest
from tests.server.streams.receiver import Receiver, receiving
from tests.server.streams.walks import (
    DOOR,
    FPS,
    HEIGHT,
    LENGTH,
    WIDTH,
    feed_in,
    frame_of,
    numbers,
    play,
    until,
    walks,
)
from tests.serving import free_ports

from fovea_preprocess.errors import InvalidOption
from fovea_server.streams.events import log as log_module
from fovea_server.streams.events import sender, webhook
from fovea_server.streams.events.config import EventConfig, hide_secrets
from fovea_server.streams.events.log import EventLog
from fovea_server.tensors.messages import ImageResult

SENDING = [sys.executable, "-m", "tests.server.streams.walks"]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(sender, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(sender, "_LONGEST_WAIT_S", 0.05)
    monkeypatch.setattr(webhook, "_TIMEOUT_S", 0.3)


def test_the_log_keeps_numbers_over_a_restart(tmp_path):
    async def run():
        log = EventLog(tmp_path)
        first = log.append({"kind": "entered"}).number
        assert log.append({"kind": "left"}).number == first + 1
        log.close()
        (file,) = tmp_path.glob("events-*.jsonl")
        with file.open("ab") as stream:
            stream.write(b'{"event": 17')  # the machine stopped here
        log = EventLog(tmp_path)
        assert log.append({"kind": "lost"}).number == first + 2
        assert [event.text for event in log.read(first, 1)] == [
            b'{"event":%d,"kind":"left"}' % (first + 1)
        ]
        assert numbers(log) == [first, first + 1, first + 2]
        assert len(file.read_bytes().splitlines()) == 3
        log.close()

    asyncio.run(run())


def test_a_reader_of_the_log_lets_others_run(tmp_path):
    async def run():
        log, steps = EventLog(tmp_path), 0

        async def others():
            nonlocal steps
            while True:
                steps += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        # A number that is older than all that is kept, in a log with and without events.
        assert await log.wait(0, 0.01) == []
        empty = steps
        assert empty
        log.append({"kind": "count"})
        assert len(await log.wait(0, 0.01)) == 1
        assert steps > empty
        task.cancel()
        log.close()
        assert await log.wait(0, 60) == []

    asyncio.run(run())


def test_the_log_is_bounded(tmp_path):
    async def run():
        log = EventLog(tmp_path, most_bytes=1000)
        for _ in range(500):
            log.append({"kind": "count"})
        kept = numbers(log)
        assert kept == list(range(log.first, log.last + 1))
        assert 20 < len(kept) < 100
        files = sorted(tmp_path.iterdir())
        assert len(files) == 2
        assert sum(file.stat().st_size for file in files) < 2100
        log.close()

    asyncio.run(run())


def test_a_log_whose_end_was_lost_goes_on(tmp_path):
    """A machine without power may forget the end of a file and keep the one behind it."""

    async def run():
        log = EventLog(tmp_path, most_bytes=1000)
        for _ in range(60):
            log.append({"kind": "count"})
        kept = numbers(log)
        log.close()
        older, newer = sorted(tmp_path.iterdir())
        older.write_bytes(b"\n".join(older.read_bytes().splitlines()[:3]) + b"\n{")
        log = EventLog(tmp_path)
        assert numbers(log) == kept[:3] + kept[-len(newer.read_bytes().splitlines()) :]
        log.close()

    asyncio.run(run())


def test_readers_wait_for_the_next_event(tmp_path):
    async def run():
        log = EventLog(tmp_path)
        waiting = [asyncio.create_task(log.wait(log.last, 30)) for _ in range(3)]
        await asyncio.sleep(0)
        number = log.append({"kind": "lost"}).number
        assert [[event.number for event in await each] for each in waiting] == [[number]] * 3
        assert await log.wait(number, 0.01) == []
        log.close()

    asyncio.run(run())


def test_events_say_what_happened(tmp_path):
    async def run():
        feed = feed_in(tmp_path, zones=["yard=0,0,1,0,1,1,0,1"])
        play(feed)
        await feed.stop()
        log = EventLog(tmp_path)
        return [event.text for event in log.read(0, 10_000)]

    events = list(map(orjson.loads, asyncio.run(run())))
    crossed = [event for event in events if event["kind"] == "crossed"]
    assert crossed
    assert crossed[0].keys() == {
        *("event", "kind", "stream", "time", "frame", "time_s", "name", "direction"),
        *("track_id", "class_id", "class_name", "score", "box"),
    }
    assert crossed[0]["class_name"] in ("person", "dog")
    assert crossed[0]["score"] == 0.9
    assert crossed[0]["box"].keys() == {"x1", "y1", "x2", "y2"}
    assert crossed[0]["name"] == "door"
    left = [event for event in events if event["kind"] == "left"]
    assert {event["name"] for event in left} == {"yard"}
    assert all(event["duration_s"] > 0 for event in left)
    last = [event for event in events if event["kind"] == "count" and event["name"] == "yard"][-1]
    assert last["counts"] == {"objects": 0}
    assert "track_id" not in last


def test_pictures_are_bounded(tmp_path):
    async def run():
        feed = feed_in(tmp_path, event_images=3, events=["lost"])
        picture = np.full((HEIGHT, WIDTH, 3), (200, 0, 0), np.uint8)
        scene = walks(1)
        for frame in range(LENGTH):
            found = frame_of(scene, frame)
            result = ImageResult(WIDTH, HEIGHT, 1, found, None, picture)
            feed.see({}, frame / FPS, result, None)
            await feed.written()
        await feed.stop()
        return [event.text for event in EventLog(tmp_path).read(0, 1000)]

    texts = asyncio.run(run())
    assert all(b'"kind":"lost"' in text for text in texts)
    files = sorted((tmp_path / "images").iterdir())
    assert len(files) == 3
    assert sum(files[-1].name.encode() in text for text in texts) > 0
    assert tuple(cv2.imread(str(files[0]))[0, 0] // 10) == (0, 0, 20)  # BGR


def test_each_event_is_posted_once_and_signed(tmp_path):
    receiver, key = Receiver(), b"0123456789abcdef"
    # One that is busy is waited for, however long that takes.
    receiver.faults = [500, "hang", "close", 429, None, 404, "hang", None, 302, *[503] * 20]

    async def run(port):
        secret = "whsec_" + base64.b64encode(key).decode()
        feed = feed_in(tmp_path, webhook=f"http://127.0.0.1:{port}/a", webhook_secret=secret)
        play(feed)
        await until(lambda: feed.document["sending"]["webhook"]["waiting"] == 0)
        expected = numbers(feed.log)
        assert feed.document["sending"]["webhook"] == {
            **{"sent": len(expected), "waiting": 0, "missed": 0, "reason": ""},
            **{"refused": 0, "refusal": ""},
        }
        await feed.stop()
        return expected

    with receiving(receiver) as port:
        expected = asyncio.run(run(port))
    assert [event["event"] for event in receiver.events][: len(expected)] == expected
    for head, body in receiver.taken:
        signed = f"{head['webhook-id']}.{head['webhook-timestamp']}.".encode() + body
        digest = hmac.digest(key, signed, hashlib.sha256)
        assert head["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    names = [head["webhook-id"] for head, _ in receiver.taken]
    assert len(names) == len(set(names))
    assert names[0] == f"gate-{expected[0]}"


@pytest.mark.parametrize("fault", [400, 500, "hang"])
def test_an_event_that_is_refused_holds_up_no_other(tmp_path, fault):
    receiver = Receiver()
    receiver.refuses = lambda event: fault if event["kind"] == "appeared" else None

    async def run(port):
        feed = feed_in(tmp_path, webhook=f"http://127.0.0.1:{port}/", events=["appeared", "lost"])
        play(feed, pixels=None)
        await until(lambda: feed.document["sending"]["webhook"]["waiting"] == 0)
        events = [orjson.loads(event.text) for event in feed.log.read(0, 1000)]
        state, lacks = feed.document["sending"]["webhook"], feed.senders["webhook"].lacks
        await feed.stop()
        return events, state, lacks

    with receiving(receiver) as port:
        events, state, lacks = asyncio.run(run(port))
    refused = [each["event"] for each in events if each["kind"] == "appeared"]
    assert len(refused) > 2
    assert receiver.events == [each for each in events if each["kind"] == "lost"]
    assert (state["refused"], state["missed"]) == (len(refused), 0)
    assert state["sent"] == len(receiver.events)
    assert state["refusal"].startswith(f"event {refused[-1]}: the receiver ")
    assert f"{len(refused)} events to the webhook" in lacks


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root alone")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_loses_no_event(small_disk):
    receiver = Receiver()

    async def run(port):
        feed = feed_in(small_disk, webhook=f"http://127.0.0.1:{port}/", event_images=1)
        filler = small_disk / "filler"
        with suppress(OSError), filler.open("wb") as file:
            file.write(bytes(1 << 20))
        picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        play(feed, pixels=picture)
        await until(lambda: feed.document["sending"]["webhook"]["waiting"] == 0)
        await feed.written()
        fault, held, kept = feed.fault, feed.log.held, numbers(feed.log)
        assert not list((small_disk / "images").glob("*"))
        filler.unlink()
        play(feed, 2, pixels=picture)
        await feed.written()
        assert len(list((small_disk / "images").glob("*"))) == 1
        assert (feed.fault, feed.log.held, feed.log.lost) == ("", 0, 0)
        await until(lambda: feed.document["sending"]["webhook"]["waiting"] == 0)
        assert numbers(feed.log)[: len(kept)] == kept
        await feed.stop()
        return fault, held, numbers(EventLog(small_disk))

    with receiving(receiver) as port:
        fault, held, kept = asyncio.run(run(port))
    assert held > 20
    assert fault == f"events cannot be written (No space left on device): {held} events in memory"
    assert [each["event"] for each in receiver.events] == kept


def test_events_that_memory_cannot_hold_are_counted(small_disk, monkeypatch):
    monkeypatch.setattr(log_module, "MAX_HELD", 5)

    async def run():
        log = EventLog(small_disk)
        with suppress(OSError), (small_disk / "filler").open("wb") as file:
            file.write(bytes(1 << 20))
        first = log.last + 1
        for _ in range(300):
            log.append({"kind": "count", "text": "x" * 100})
        lost = log.lost
        (small_disk / "filler").unlink()
        log.write()
        kept = numbers(log)
        assert kept[-5:] == list(range(first + 295, first + 300))
        assert len(kept) == 300 - lost
        assert log.append({"kind": "lost"}).number == first + 300
        log.close()
        assert numbers(EventLog(small_disk)) == [*kept, first + 300]
        return lost

    assert asyncio.run(run()) > 200


def test_counts_of_a_line_go_on(tmp_path):
    async def run(seed=None, **given):
        feed = feed_in(tmp_path, zones=["yard=0,0,1,0,1,1,0,1"], **given)
        counts = feed.counts
        if seed is not None:
            play(feed, seed)
            counts = feed.counts
            # They are there, too, where the server is killed.
            kept = orjson.loads((tmp_path / "counts.json").read_bytes())["door"]
            assert {key: kept[key] for key in ("in", "out")} == counts["door"]
        await feed.stop()
        return counts

    first = asyncio.run(run(1))
    assert sum(first["door"].values()) > 3
    assert asyncio.run(run(debounce="0ms")) == {**first, "yard": {"objects": 0}}
    second = asyncio.run(run(1))
    assert second["door"] == {key: 2 * count for key, count in first["door"].items()}
    # A line that is moved is another line.
    assert asyncio.run(run(lines="door=0.4,0,0.4,1"))["door"] == {"in": 0, "out": 0}
    (tmp_path / "counts.json").write_text("[1]")
    assert asyncio.run(run())["door"] == {"in": 0, "out": 0}


def test_a_sender_that_is_hurried_waits_no_longer(tmp_path, monkeypatch):
    for wait in ("_FIRST_WAIT_S", "_LONGEST_WAIT_S"):
        monkeypatch.setattr(sender, wait, 1000)
    receiver, (port,) = Receiver(), free_ports(1)

    async def run():
        feed = feed_in(tmp_path, webhook=f"http://127.0.0.1:{port}/")
        play(feed)
        [sending] = feed.senders.values()
        await until(lambda: sending.reason)
        with receiving(receiver, port):
            sending.hurry()
            await until(lambda: sending.waiting == 0)
        await feed.stop()

    asyncio.run(run())
    assert receiver.events


def test_a_receiver_that_is_away_misses_nothing_over_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(webhook, "_TIMEOUT_S", 10.0)
    receiver, (port,) = Receiver(), free_ports(1)
    address = f"http://127.0.0.1:{port}/"

    async def away(seed):
        feed = feed_in(tmp_path, webhook=address)
        play(feed, seed)
        await until(lambda: feed.document["sending"]["webhook"]["reason"])
        assert "does not respond" in feed.document["sending"]["webhook"]["reason"]
        await feed.stop()

    async def back():
        feed = feed_in(tmp_path, webhook=address)
        await until(lambda: feed.document["sending"]["webhook"]["waiting"] == 0)
        expected = numbers(feed.log)
        await feed.stop()
        return expected

    for seed in (1, 2):
        asyncio.run(away(seed))
    with receiving(receiver, port):
        expected = asyncio.run(back())
    assert len(expected) > 50
    assert [event["event"] for event in receiver.events] == expected


def test_one_that_was_away_too_long_is_told_how_much_it_missed(tmp_path, monkeypatch):
    receiver = Receiver()
    receiver.faults = [503] * 3

    async def run(port):
        feed = feed_in(tmp_path, webhook=f"http://127.0.0.1:{port}/")
        feed.log._most_bytes = 2000
        for _ in range(4):
            play(feed)
        await until(lambda: feed.document["sending"]["webhook"]["waiting"] == 0)
        kept, state = numbers(feed.log), feed.document["sending"]["webhook"]
        await feed.stop()
        assert state["missed"] > 0
        return kept

    with receiving(receiver) as port:
        kept = asyncio.run(run(port))
    assert [event["event"] for event in receiver.events][: len(kept)] == kept


def test_an_event_under_way_arrives_before_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(webhook, "_TIMEOUT_S", 5.0)
    receiver = Receiver()
    receiver.faults = ["late"]

    async def run(port):
        feed = feed_in(tmp_path, webhook=f"http://127.0.0.1:{port}/")
        feed.log.append({"kind": "count"})
        await until(lambda: receiver.taken)
        await feed.stop()
        feed = feed_in(tmp_path, webhook=f"http://127.0.0.1:{port}/")
        feed.log.append({"kind": "count"})
        await until(lambda: feed.document["sending"]["webhook"]["waiting"] == 0)
        await feed.stop()

    with receiving(receiver) as port:
        asyncio.run(run(port))
    assert len(receiver.taken) == 2


def test_a_sender_that_is_killed_sends_the_same_ids_again(tmp_path):
    receiver = Receiver()

    async def filled():
        log = EventLog(tmp_path)
        (tmp_path / "webhook.sent").write_text(str(log.last))
        for _ in range(400):
            log.append({"kind": "count"})
        return numbers(log)

    expected = asyncio.run(filled())
    with receiving(receiver) as port:
        command = [*SENDING, str(tmp_path), "webhook", f"http://127.0.0.1:{port}/"]
        for share in (50, 120, 260, 400):
            process = subprocess.Popen(command, cwd=Path(__file__).parents[3])
            receiver.wait_for(share)
            process.kill()
            process.wait()
    names = [head["webhook-id"] for head, _ in receiver.taken]
    # Once each by their ids; only the one under way when it was killed may have come again.
    assert list(dict.fromkeys(names)) == [f"gate-{number}" for number in expected]
    assert len(names) - len(set(names)) <= 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"events": ["entred"]}, "'entred'; the kinds are appeared"),
        ({"events": [1]}, "events must be a text or a list of texts"),
        ({"lines": [DOOR, DOOR]}, "two lines or zones have the name door"),
        ({"debounce": 3}, "debounce is '3'; it must be a time"),
        ({"event_images": True}, "event_images is 'True'"),
        ({"lost_after": "later"}, "lost_after is 'later'"),
        ({"lost_after": 200}, "lost_after is '200'; it must be a time"),
        ({"webhook": "ftp://a"}, "webhook must be a URL"),
        ({"webhook": "http://[/"}, "webhook must be a URL"),
        ({"webhook": 7}, "webhook must be a text"),
        ({"webhook_secret": "a"}, "no effect without webhook"),
        ({"webhook": "http://a", "webhook_secret": "whsec_%"}, "must be whsec_ followed by base64"),
        ({"webhook": "http://a", "webhook_secret": "whsec_"}, "must be whsec_ followed by base64"),
        ({"webhook": "http://a", "webhook_secret": "c2VjcmV0"}, "create one with echo"),
        ({"mqtt": "http://a"}, "mqtt must be a URL"),
        ({"mqtt": "mqtt://a:b:c"}, "mqtt must be a URL"),
        ({"mqtt": "mqtt://a/#"}, "mqtt must be a URL"),
    ],
)
def test_settings_that_are_not(given, words):
    with pytest.raises(InvalidOption, match=words):
        EventConfig.parse(given)


def test_listings_have_no_secrets():
    assert EventConfig.parse({"model": "m"}) is None
    given = {"webhook": "https://a:pass@host:8443/token?key=x", "mqtt": "mqtt://u:p@b:1884/home"}
    given["webhook_secret"] = "whsec_c2VjcmV0"
    assert hide_secrets({**given, "lines": [DOOR]}) == {
        "webhook": "https://host:8443",
        "mqtt": "mqtt://b:1884",
        "lines": [DOOR],
    }
