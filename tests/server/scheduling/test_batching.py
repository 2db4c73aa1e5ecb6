"""Which requests share a batch."""

from typing import cast

import numpy as np
import pytest

from fovea_engines.session import Session
from fovea_server.scheduling.batching import Decision, DynamicBatching
from fovea_server.scheduling.job import Job, TensorSource
from fovea_server.tensors.check import CheckedRequest
from fovea_server.tensors.messages import InferRequest

SECOND = 1_000_000_000


class Unused:
    """A session that is not called."""

    steady = False


def job(rows: int = 1, arrived_ns: int = 0, width: int = 4, name: str = "x") -> Job:
    feeds = {name: np.zeros((rows, width), np.float32)}
    source = TensorSource(cast(Session, Unused()), DynamicBatching(8))
    return source.job(InferRequest("m", None, []), CheckedRequest(feeds, rows), arrived_ns)


@pytest.mark.parametrize(
    ("preferred", "delay_us", "rows", "count"),
    [
        ([], 0, [1], 1),
        ([], 0, [1, 1, 1], 3),
        ([], 0, [4, 4, 1], 2),
        ([], 0, [3, 3, 3], 2),
        ([4], 0, [1, 1, 1, 1, 1], 4),
        ([4, 8], 0, [1] * 9, 8),
        ([4], 0, [3, 3], 1),
        ([4, 8], 1000, [1, 1, 1], 0),
        ([4, 8], 1000, [1, 1, 1, 1, 1], 4),
        ([], 1000, [1] * 7, 0),
        ([], 1000, [1] * 8, 8),
        ([], 1000, [5, 5], 1),
    ],
)
def test_count(preferred: list[int], delay_us: int, rows: list[int], count: int) -> None:
    batching = DynamicBatching(8, preferred, delay_us)

    assert batching.decide([job(n) for n in rows], now_ns=0).count == count


def test_what_does_not_reach_a_preferred_size_waits_for_the_rest_of_the_delay() -> None:
    batching = DynamicBatching(8, [4], delay_us=1_000_000)
    waiting = [job(arrived_ns=0), job(arrived_ns=SECOND // 2)]

    assert batching.decide(waiting, SECOND // 4) == Decision(0, 0.75)
    assert batching.decide(waiting, SECOND) == Decision(2)


def test_after_the_delay_more_than_a_preferred_size_goes() -> None:
    batching = DynamicBatching(8, [4], delay_us=1_000_000)

    assert batching.decide([job() for _ in range(6)], SECOND // 2) == Decision(4)
    assert batching.decide([job() for _ in range(6)], SECOND) == Decision(6)


@pytest.mark.parametrize("other", [job(width=5), job(name="y")])
def test_other_shapes_and_other_inputs_end_a_batch(other: Job) -> None:
    batching = DynamicBatching(8, delay_us=1_000_000)

    assert batching.decide([job(), job(), other, job()], 0) == Decision(2)


@pytest.mark.parametrize("rows", [[1], [1, 1], [5], [5, 3, 1]])
def test_in_batches_of_one_each_goes_alone(rows: list[int]) -> None:
    assert DynamicBatching(1).decide([job(n) for n in rows], 0) == Decision(1)
