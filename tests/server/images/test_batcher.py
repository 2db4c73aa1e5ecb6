"""The batcher: rows are written once, taken in order, and nothing is lost."""

import threading
import time

import numpy as np
import pytest

from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import ShuttingDown
from fovea_server.images.batcher import Batcher

INPUTS = [TensorSpec("x", "float32", (-1, 3))]


class Owner:
    def __init__(self, value: float) -> None:
        self.value = value
        self.waits = True

    def wanted(self) -> bool:
        return self.waits


def make(max_batch=4, batches=2, max_delay_s=0.0) -> Batcher:
    return Batcher(INPUTS, max_batch=max_batch, batches=batches, max_delay_s=max_delay_s)


def put(batcher: Batcher, value: float) -> Owner:
    owner = Owner(value)
    batch, row = batcher.lease()
    batch.buffers["x"][row] = value
    batcher.commit(batch, row, owner)
    return owner


def test_rows_gather_in_one_batch_in_order():
    batcher = make()
    for value in (1, 2, 3):
        put(batcher, value)
    batch = batcher.take()
    assert [owner.value for owner in batch.jobs.values()] == [1, 2, 3]
    assert batch.feeds()["x"][:, 0].tolist() == [1, 2, 3]
    assert batch.feeds()["x"].base is not None, "a view, not a copy"


def test_rows_keep_their_owners_in_any_order_of_writing():
    batcher = make()
    late = batcher.lease()
    put(batcher, 2)
    late[0].buffers["x"][0] = 1
    batcher.commit(*late, Owner(1))
    batch = batcher.take()
    assert [owner.value for owner in batch.jobs.values()] == [1, 2]
    assert batch.feeds()["x"][:, 0].tolist() == [1, 2]


def test_rows_nobody_wants_are_dropped_and_the_gap_closed():
    batcher = make()
    owners = [put(batcher, value) for value in (1, 2, 3, 4)]
    owners[0].waits = owners[2].waits = False
    batch = batcher.take()
    assert [(owner.value, row) for row, owner in batch.jobs.items()] == [(2, 0), (4, 1)]
    assert batch.feeds()["x"][:, 0].tolist() == [2, 4]


def test_a_batch_that_nobody_wants_is_recycled():
    batcher = make(max_batch=1, batches=1)
    put(batcher, 1).waits = False
    late = threading.Thread(target=put, args=(batcher, 2))
    late.start()
    assert batcher.take().jobs[0].value == 2
    late.join()


def test_given_up_rows_do_not_reach_the_engine():
    batcher = make()
    batcher.commit(*batcher.lease(), None)
    put(batcher, 7)
    assert batcher.take().feeds()["x"][:, 0].tolist() == [7]


def test_a_batch_with_unwritten_rows_waits_for_them():
    batcher = make()
    put(batcher, 1)
    slow = batcher.lease()
    taken = []
    owner = threading.Thread(target=lambda: taken.append(batcher.take()))
    owner.start()
    time.sleep(0.05)
    assert not taken
    slow[0].buffers["x"][1] = 2
    batcher.commit(*slow, Owner(2))
    owner.join(5)
    assert taken[0].rows == 2


def test_a_batch_waits_for_more_only_as_long_as_it_was_told():
    batcher = make(max_delay_s=0.15)
    started = time.monotonic()
    put(batcher, 1)
    assert batcher.take().rows == 1
    assert time.monotonic() - started >= 0.15
    for value in range(4):
        put(batcher, value)
    started = time.monotonic()
    assert batcher.take().rows == 4
    assert time.monotonic() - started < 0.15, "a full batch does not wait"


def test_a_writer_waits_for_a_free_batch():
    batcher = make(max_batch=1, batches=1)
    put(batcher, 1)
    batch = batcher.take()
    writer = threading.Thread(target=put, args=(batcher, 2))
    writer.start()
    writer.join(0.05)
    assert writer.is_alive()
    batcher.release(batch)
    writer.join(5)
    assert batcher.take().jobs[0].value == 2


def test_closing_drains_then_ends():
    batcher = make(max_delay_s=60)
    put(batcher, 1)
    batcher.close()
    assert batcher.take().rows == 1
    assert batcher.take() is None
    with pytest.raises(ShuttingDown):
        batcher.lease()


def test_nothing_is_lost_or_mixed_up_under_load():
    batcher = make(max_batch=8, batches=4)
    per_writer, seen, lock = 500, [], threading.Lock()

    def own() -> None:
        while (batch := batcher.take()) is not None:
            rows = batch.feeds()["x"].copy()
            with lock:
                for row, owner in batch.jobs.items():
                    assert np.all(rows[row] == owner.value)
                    seen.append(owner.value)
            batcher.release(batch)

    owners = [threading.Thread(target=own) for _ in range(3)]
    writers = [
        threading.Thread(
            target=lambda base=base: [
                put(batcher, base * per_writer + n) for n in range(per_writer)
            ]
        )
        for base in range(4)
    ]
    for thread in owners + writers:
        thread.start()
    for thread in writers:
        thread.join(60)
    batcher.close()
    for thread in owners:
        thread.join(60)
    assert sorted(seen) == list(range(4 * per_writer))
