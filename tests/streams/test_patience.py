"""The time that a client may take, by a clock of the test."""

import pytest

from fovea_server.byte_budget import SLOWEST
from fovea_streams.sockets.patience import LAST_S, PING_S, Judgement, Patience


def steps(patience, until, *, from_s=0, unsent=0, hear=0, **given):
    """Return the steps from a second on, each second with its number, without LET."""
    state = {"arriving": False, "paused": False, "ending": False} | given
    said = []
    for now in range(from_s + 1, until + 1):
        if hear:
            patience.hear(now, hear)
        step = patience.judge(now, unsent, **state)
        if step is not Judgement.LET:
            said.append((now, step))
    return said


def test_a_silent_client_is_pinged_and_then_left():
    pinged, left = (PING_S, Judgement.PING), (2 * PING_S, Judgement.ABORT)
    assert steps(Patience(30, 0), int(2 * PING_S)) == [pinged, left]
    answers = Patience(30, 0)
    assert steps(answers, int(PING_S)) == [pinged]
    answers.hear(PING_S + 1, 2)
    assert steps(answers, int(2 * PING_S), from_s=int(PING_S) + 1) == []


@pytest.mark.parametrize(("size", "late"), [(SLOWEST - 1, True), (SLOWEST, False)])
def test_a_message_has_a_slowest_rate(size, late):
    said = steps(Patience(10, 0), 29, hear=size, arriving=True)
    assert said == ([(10, Judgement.REFUSE), (20, Judgement.REFUSE)] if late else [])


def test_a_client_that_does_not_read_has_less_time_at_a_stop():
    assert steps(Patience(10, 0), 11, unsent=5) == [(11, Judgement.ABORT)]
    last = int(LAST_S) + 1
    assert steps(Patience(10, 0), last, unsent=5, ending=True) == [(last, Judgement.ABORT)]
    reads = Patience(10, 0)
    assert [
        reads.judge(now, 99 - now, arriving=False, paused=True, ending=False)
        for now in range(1, 90)
    ] == [Judgement.LET] * 89


def test_a_client_that_is_not_read_is_neither_silent_nor_slow():
    patience = Patience(10, 0)
    assert steps(patience, 60, paused=True, arriving=True) == []
    assert steps(patience, 60 + int(PING_S) - 1, from_s=60) == []
