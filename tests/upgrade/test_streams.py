"""HEAD begins the recorded streams again, and lists the events that they had."""

import json
from typing import Any

import httpx
import pytest
from tests.keyed import until
from tests.serving import RunningServer
from tests.upgrade.recorded import DATA, load
from tests.upgrade.same import differences

pytestmark = pytest.mark.slow


def recorded_events(name: str) -> list[Any]:
    files = (DATA / "repository" / ".streams" / name).glob("events-*.jsonl")
    return [json.loads(line) for path in sorted(files) for line in path.read_text().splitlines()]


def stream(server: RunningServer, name: str) -> Any:
    return httpx.get(f"{server.url}/v1/streams/{name}").json()


def events(server: RunningServer, name: str, count: int, after: int = 0) -> list[Any]:
    head = {"accept": "application/x-ndjson", "last-event-id": str(after)}
    found = []
    address = f"{server.url}/v1/streams/{name}/events"
    with httpx.stream("GET", address, headers=head, timeout=120) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            found.append(json.loads(line))
            if len(found) == count:
                break
    return found


def test_streams_have_their_settings(server: RunningServer) -> None:
    """The camera of a client, the one that it stopped, and the clip of streams.toml."""
    until(lambda: stream(server, "porch")["frames"]["answered"] > 2)
    until(lambda: stream(server, "recording")["state"] == "ended")
    until(lambda: any(stream(server, "porch")["counts"]["door"].values()))
    new = {each["id"]: each for each in httpx.get(f"{server.url}/v1/streams").json()["streams"]}
    old = {each["id"]: each for each in load("streams.json")["streams"]}
    assert new.keys() == old.keys()
    for name, before in old.items():
        # Addresses and what was counted are of one run.
        assert not (found := differences(before, new[name], f"stream {name}", momentary=True)), (
            found
        )
        settings = {"model", "fps", "track", "lines", "zones", "debounce", "lost_after", "conf"}
        for key in settings & before.keys():
            assert new[name][key] == before[key], key
    assert new["garden"]["state"] == old["garden"]["state"]


@pytest.mark.parametrize("name", ["porch", "recording"])
def test_old_events_are_listed(name: str, server: RunningServer) -> None:
    old = recorded_events(name)
    assert {"appeared", "crossed", "entered"} <= {each["kind"] for each in old}
    assert events(server, name, len(old)) == old


def test_new_events_go_on_with_the_numbers(server: RunningServer) -> None:
    """And they have the fields of the old ones."""
    old = recorded_events("porch")
    last = old[-1]["event"]
    found = events(server, "porch", 12, after=last)
    assert [each["event"] for each in found] == [last + 1 + n for n in range(12)]
    for each in found:
        what = (each["kind"], each.get("name"), "frame" in each)
        alike = (one for one in old if (one["kind"], one.get("name"), "frame" in one) == what)
        if before := next(alike, None):
            assert not (
                told := differences(before, each, f"event {each['kind']}", momentary=True)
            ), told


def test_a_stream_of_the_record_is_changed_and_kept(server: RunningServer) -> None:
    """`PATCH` and the file: what a restart of HEAD would find."""
    file = server.log.parent / "repository" / "streams.json"
    before = json.loads(file.read_text())
    address = f"{server.url}/v1/streams/garden"
    assert httpx.patch(address, json={"conf": 0.75}).status_code == 200
    after = json.loads(file.read_text())
    assert after == {**before, "garden": {**before["garden"], "conf": 0.75}}
