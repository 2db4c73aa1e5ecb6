"""Promotions and the way back while clients ask, and what both must leave behind."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import httpx
from tests.keyed import until
from tests.load import Load, over_grpc, over_http

MODES = {
    "none": [],
    "explicit": ["--model-control-mode=explicit", "--load-model=*"],
    "poll": ["--model-control-mode=poll", "--repository-poll-secs=0.3"],
}
"""The ways in which a server loads models, and the flags for each."""


@contextmanager
def clients(url: str, grpc: str, each: int) -> Iterator[list[Load]]:
    """Clients of HTTP and of gRPC that name no version of `digits`, so many of each."""
    with ExitStack() as stack:
        loads = [Load(over_http(url), each), Load(over_grpc(grpc), each)]
        for load in loads:
            stack.enter_context(load)
            load.wait_for_more(4)
        yield loads


def there_and_back(url: str, loads: Sequence[Load], times: int) -> list[float]:
    """Promote version 1 and go back to 2, so many times; the seconds of each change.

    After each one, every load gets answers of the version that is current then.
    """
    took, path = [], f"{url}/v1/models/digits"
    with httpx.Client(timeout=120) as http:
        for change, version in (("promote", "1"), ("rollback", "2")) * times:
            given = {"version": 1, "why": "a test"} if change == "promote" else {}
            began = time.monotonic()
            answer = http.post(f"{path}/{change}", json=given)
            took.append(time.monotonic() - began)
            assert answer.status_code == 200, answer.text
            assert answer.json()["current"] == version
            assert http.get(path).json()["version"] == version
            for load in loads:
                before = load.answered[version]
                until(lambda: load.failed or load.answered[version] > before)  # noqa: B023
    return took


def change_until_it_dies(url: str, before: int) -> tuple[threading.Thread, list[int]]:
    """Begin to change versions without end; the number of each event that was answered.

    Args:
        url: of a server that somebody kills.
        before: events that there are.
    """
    told = [before]

    def change() -> None:
        with httpx.Client(timeout=120) as http:
            while True:
                given = {"version": 1 + told[-1] % 2}
                try:
                    answer = http.post(f"{url}/v1/models/digits/promote", json=given)
                except httpx.HTTPError:
                    return
                if answer.status_code != httpx.codes.OK:
                    return
                told.append(answer.json()["events"][-1]["number"])

    thread = threading.Thread(target=change)
    thread.start()
    return thread, told
