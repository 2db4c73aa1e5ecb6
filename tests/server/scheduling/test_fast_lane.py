"""When a model runs on the event loop."""

import numpy as np

from fovea_server.scheduling.fast_lane import FastLane
from fovea_server.v2.check import Checked

QUICK, SLOW = 20_000, 50_000_000
SMALL = Checked({"x": np.zeros((1, 16), np.int32)}, 1)
LARGE = Checked({"x": np.zeros((1, 1 << 20), np.int32)}, 1)


def in_threads(lane: FastLane, *calls_ns: int) -> None:
    for call_ns in calls_ns:
        lane.learn(call_ns, here=False)


def test_opens_for_a_quick_model_though_threads_had_to_wait_for_the_lock() -> None:
    lane = FastLane()
    assert not lane.takes(SMALL)

    in_threads(lane, *[SLOW] * 15)
    assert not lane.takes(SMALL)

    in_threads(lane, QUICK)
    assert lane.takes(SMALL)


def test_stays_closed_for_a_slow_model() -> None:
    lane = FastLane()

    in_threads(lane, *[SLOW] * 1000)

    assert not lane.takes(SMALL)


def test_does_not_take_large_inputs() -> None:
    lane = FastLane()
    in_threads(lane, *[QUICK] * 16)

    assert lane.takes(SMALL)
    assert not lane.takes(LARGE)


def test_one_interruption_does_not_close_it_and_a_slow_call_does() -> None:
    lane = FastLane()
    in_threads(lane, *[QUICK] * 16)

    lane.learn(10_000_000, here=True)
    assert lane.takes(SMALL)

    lane.learn(SLOW, here=True)
    assert not lane.takes(SMALL)


def test_a_model_that_is_quick_only_now_and_then_is_tried_ever_more_rarely() -> None:
    lane = FastLane()
    tries = 0
    for _ in range(20_000):
        if lane.takes(SMALL):
            tries += 1
            lane.learn(SLOW, here=True)
        in_threads(lane, QUICK)

    assert tries <= 12


def test_after_a_long_good_time_it_opens_again_soon() -> None:
    lane = FastLane()
    in_threads(lane, *[QUICK] * 16)
    for _ in range(2000):
        lane.learn(QUICK, here=True)
    lane.learn(SLOW, here=True)
    assert not lane.takes(SMALL)

    in_threads(lane, *[QUICK] * 16)

    assert lane.takes(SMALL)
