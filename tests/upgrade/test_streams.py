"""HEAD starts the recorded streams again, and lists their events."""

import json
from itertools import islice
from typing import Any

import httpx
import pytest
from tests.keyed import until
from tests.serving import RunningServer
from tests.upgrade.compare import check_same
from tests.upgrade.recording import DATA, load

pytestmark = pytest.mark.slow


def read_recorded_events(name: str) -> list[Any]:
    files = (DATA / "repository" / ".streams" / name).glob("events-*.jsonl")
    return [json.loads(line) for path in sorted(files) for line in path.read_text().splitlines()]


def read_stream(server: RunningServer, name: str) -> Any:
    return httpx.get(f"{server.url}/v1/streams/{name}").json()


def read_events(server: RunningServer, name: str, count: int, after: int = 0) -> list[Any]:
    headers = {"accept": "application/x-ndjson", "last-event-id": str(after)}
    url = f"{server.url}/v1/streams/{name}/events"
    with httpx.stream("GET", url, headers=headers, timeout=120) as response:
        assert response.status_code == 200
        return [json.loads(line) for line in islice(response.iter_lines(), count)]


def test_streams_have_their_settings(server: RunningServer) -> None:
    """A client added "porch" and the stopped "garden"; "recording" is in streams.toml."""
    until(lambda: read_stream(server, "porch")["frames"]["answered"] > 2)
    until(lambda: read_stream(server, "recording")["state"] == "ended")
    until(lambda: any(read_stream(server, "porch")["counts"]["door"].values()))
    new = {each["id"]: each for each in httpx.get(f"{server.url}/v1/streams").json()["streams"]}
    old = {each["id"]: each for each in load("streams.json")["streams"]}
    assert new.keys() == old.keys()
    settings = {"model", "fps", "track", "lines", "zones", "debounce", "lost_after", "conf"}
    for name, before in old.items():
        # URLs and counts belong to one run.
        check_same(before, new[name], f"stream {name}", momentary=True)
        for key in settings & before.keys():
            assert new[name][key] == before[key], key
    assert new["garden"]["state"] == old["garden"]["state"]


@pytest.mark.parametrize("name", ["porch", "recording"])
def test_recorded_events_are_listed(name: str, server: RunningServer) -> None:
    old = read_recorded_events(name)
    assert {"appeared", "crossed", "entered"} <= {each["kind"] for each in old}
    assert read_events(server, name, len(old)) == old


def test_new_events_continue_the_numbers(server: RunningServer) -> None:
    def form(event: Any) -> tuple[Any, ...]:
        return event["kind"], event.get("name"), "frame" in event

    old = read_recorded_events("porch")
    last = old[-1]["event"]
    new = read_events(server, "porch", 12, after=last)
    assert [each["event"] for each in new] == [*range(last + 1, last + 13)]
    for each in new:
        for before in [one for one in old if form(one) == form(each)][:1]:
            check_same(before, each, f"event {each['kind']}", momentary=True)


def test_a_recorded_stream_is_changed_and_saved(server: RunningServer) -> None:
    file = server.log.parent / "repository" / "streams.json"
    before = json.loads(file.read_text())
    url = f"{server.url}/v1/streams/garden"
    assert httpx.patch(url, json={"conf": 0.75}).status_code == 200
    after = json.loads(file.read_text())
    assert after == {**before, "garden": {**before["garden"], "conf": 0.75}}
