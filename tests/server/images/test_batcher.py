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
        self.wanted = True


def make(max_batch=4, batches=2, max_delay_s=0.0) -> Batcher[Owner]:
    return Batcher(
        INPUTS,
        max_batch=max_batch,
        batches=batches,
        max_delay_s=max_delay_s,
        wanted=lambda owner: owner.wanted,
    )


def put(batcher: Batcher[Owner], value: float, rows: int = 1) -> Owner:
    owner = Owner(value)
    lease = batcher.lease(rows)
    lease.rows("x")[:] = value
    batcher.commit(lease, owner)
    return owner


def test_rows_gather_in_one_batch_in_order():
    batcher = make()
    for value in (1, 2, 3):
        put(batcher, value)
    batch = batcher.take()
    assert [e.owner.value for e in batch.entries] == [1, 2, 3]
    assert batch.feeds()["x"][:, 0].tolist() == [1, 2, 3]
    assert batch.feeds()["x"].base is not None, "a view, not a copy"


def test_several_rows_stay_together():
    batcher = make()
    put(batcher, 1, rows=3)
    put(batcher, 2, rows=2)
    first, second = batcher.take(), batcher.take()
    assert (first.rows, second.rows) == (3, 2)
    assert second.feeds()["x"][:, 0].tolist() == [2, 2]


def test_rows_nobody_wants_are_dropped_and_the_gap_closed():
    batcher = make()
    owners = [put(batcher, value) for value in (1, 2, 3, 4)]
    owners[0].wanted = owners[2].wanted = False
    batch = batcher.take()
    assert [(e.owner.value, e.start) for e in batch.entries] == [(2, 0), (4, 1)]
    assert batch.feeds()["x"][:, 0].tolist() == [2, 4]


def test_a_batch_that_nobody_wants_is_recycled():
    batcher = make(max_batch=1, batches=1)
    put(batcher, 1).wanted = False
    late = threading.Thread(target=put, args=(batcher, 2))
    late.start()
    assert batcher.take().entries[0].owner.value == 2
    late.join()


def test_given_up_rows_do_not_reach_the_engine():
    batcher = make()
    batcher.commit(batcher.lease(), None)
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
    slow.rows("x")[:] = 2
    batcher.commit(slow, Owner(2))
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
    assert batcher.take().entries[0].owner.value == 2


def test_more_rows_than_a_batch_are_refused():
    with pytest.raises(ValueError, match="5 rows do not fit a batch of 4"):
        make().lease(5)


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
                for entry in batch.entries:
                    mine = rows[entry.start : entry.start + entry.rows]
                    assert np.all(mine == entry.owner.value)
                    seen.append(entry.owner.value)
            batcher.release(batch)

    owners = [threading.Thread(target=own) for _ in range(3)]
    writers = [
        threading.Thread(
            target=lambda base=base: [
                put(batcher, base * per_writer + n, rows=1 + n % 3) for n in range(per_writer)
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
