"""The limit of a queue: all or none, and an honest word on when to come back."""

import time
from types import SimpleNamespace
from typing import cast

import pytest

from fovea_engines.repository.model_config_scheduling import ModelDynamicBatching
from fovea_engines.session import Session
from fovea_preprocess.errors import InvalidRequest, QueueFull
from fovea_server.scheduling import job_queue
from fovea_server.scheduling.batching import DynamicBatching
from fovea_server.scheduling.job import Job, TensorSource
from fovea_server.scheduling.job_queue import JobQueue
from fovea_server.tensors.check import CheckedRequest
from fovea_server.tensors.messages import InferRequest

SOURCE = TensorSource(cast(Session, SimpleNamespace(steady=False)), DynamicBatching(1))


class Clock:
    """The time of a queue, which passes by `sleep` alone: a busy machine sleeps longer."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(1e9 * self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(job_queue, "time", made)
    return made


def queue(limit: int) -> JobQueue:
    return JobQueue(ModelDynamicBatching(), limit=limit, side_by_side=1)


def jobs(count: int, client: str = "") -> list[Job]:
    request = InferRequest("m", None, [], client=client)
    return [SOURCE.job(request, CheckedRequest({}, 1), 0) for _ in range(count)]


def test_all_or_none() -> None:
    waiting = queue(4)
    waiting.enter(jobs(3))
    with pytest.raises(QueueFull):
        waiting.enter(jobs(2))
    assert waiting.accepted == len(waiting) == 3
    waiting.enter(jobs(1))
    waiting.count_answer(served=True)
    assert waiting.accepted == 3


def test_clients_take_turns_and_each_is_served_in_its_order() -> None:
    waiting, of = queue(40), {}
    for client, count in (("greedy", 8), ("greedy", 8), ("second", 1), ("third", 3)):
        for job in (entered := jobs(count, client)):
            of[job] = client
        waiting.enter(entered)
    seen = []
    for _ in range(20):
        [job] = waiting.next()[0]
        waiting.done()
        seen.append(job)
        if len(seen) == 6:
            # One who comes later does not wait for what the others had before.
            entered = jobs(2, "late")
            of |= dict.fromkeys(entered, "late")
            waiting.enter(entered)
    order = [of[job] for job in seen]
    assert order[:4] == ["greedy", "second", "third", "greedy"]
    assert "late" in order[6:9]
    assert order[14:] == ["greedy"] * 6
    for client in set(order):
        turns = [job.turn for job in seen if of[job] == client]
        assert turns == sorted(turns)


def test_retry_after_is_queue_length_over_measured_speed(clock: Clock) -> None:
    waiting = queue(40)
    waiting.enter(jobs(40))
    for _ in range(20):
        clock.sleep(0.01)
        waiting.count_answer(served=True)
    with pytest.raises(QueueFull) as full:
        waiting.enter(jobs(21))
    # 20 are left at 10 ms each.
    assert full.value.retry_after_s == pytest.approx(0.2, rel=0.2)


def test_idle_time_is_not_taken_for_slowness(clock: Clock) -> None:
    waiting = queue(1)
    waiting.enter(jobs(1))
    waiting.count_answer(served=True)
    clock.sleep(0.3)
    waiting.enter(jobs(1))
    waiting.count_answer(served=True)
    waiting.enter(jobs(1))
    with pytest.raises(QueueFull) as full:
        waiting.enter(jobs(1))
    assert full.value.retry_after_s < 0.2


def test_what_is_given_up_says_nothing_about_speed(clock: Clock) -> None:
    waiting = queue(10)
    waiting.enter(jobs(10))
    clock.sleep(0.1)
    waiting.count_answer(served=True)
    for _ in range(8):
        waiting.count_answer(served=False)
    waiting.enter(jobs(9))
    with pytest.raises(QueueFull) as full:
        waiting.enter(jobs(1))
    assert full.value.retry_after_s >= 0.9


def test_what_never_fits_is_not_told_to_come_back() -> None:
    with pytest.raises(InvalidRequest):
        queue(4).enter(jobs(5))


def test_a_batch_that_waits_for_more_does_not_hold_up_the_other_source() -> None:
    waiting = JobQueue(ModelDynamicBatching(), limit=8, side_by_side=1)
    patient = TensorSource(
        cast(Session, SimpleNamespace(steady=False)), DynamicBatching(4, delay_us=10_000_000)
    )
    request, now = InferRequest("m", None, []), time.monotonic_ns()
    waits = patient.job(request, CheckedRequest({}, 1), now)
    waiting.enter([waits])
    assert waiting.next()[0] == []
    [other] = jobs(1)
    waiting.enter([other])

    assert waiting.next() == ([other], None)
    assert waiting.next() == ([], None)
    waiting.done()
    taken, wait_s = waiting.next()
    assert taken == []
    assert wait_s is not None
    assert 0 < wait_s <= 10
    assert list(waiting.clear()) == [waits]
