"""Admission: all or none, and an honest word on when to come back."""

import time

import pytest

from fovea_preprocess.errors import InvalidRequest, QueueFull
from fovea_server.images.counts import Admission


def test_all_or_none():
    admission = Admission(4)
    admission.enter(3)
    with pytest.raises(
        QueueFull, match=r"^3 images accepted and not yet answered, and the limit is 4 "
    ):
        admission.enter(2)
    assert admission.inside == 3
    admission.enter(1)
    admission.leave(served=True)
    assert admission.inside == 3


def test_retry_after_is_queue_length_over_measured_speed():
    admission = Admission(40)
    admission.enter(40)
    for _ in range(20):
        time.sleep(0.01)
        admission.leave(served=True)
    with pytest.raises(QueueFull) as full:
        admission.enter(21)
    # 20 are left at some 10 ms each; a noisy machine sleeps longer, never shorter.
    assert 0.2 <= full.value.retry_after_s < 2


def test_idle_time_is_not_taken_for_slowness():
    admission = Admission(1)
    admission.enter(1)
    admission.leave(served=True)
    time.sleep(0.3)
    admission.enter(1)
    admission.leave(served=True)
    admission.enter(1)
    with pytest.raises(QueueFull) as full:
        admission.enter(1)
    assert full.value.retry_after_s < 0.2


def test_what_is_given_up_says_nothing_about_speed():
    admission = Admission(10)
    admission.enter(10)
    time.sleep(0.1)
    admission.leave(served=True)
    for _ in range(8):
        admission.leave(served=False)
    admission.enter(9)
    with pytest.raises(QueueFull) as full:
        admission.enter(1)
    assert full.value.retry_after_s >= 0.9


def test_what_never_fits_is_not_told_to_come_back():
    with pytest.raises(InvalidRequest, match="split it"):
        Admission(4).enter(5)
