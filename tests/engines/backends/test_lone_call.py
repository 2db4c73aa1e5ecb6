"""The layout of lone calls, on a clock of the test and with a runtime."""

from itertools import pairwise

import numpy as np
import pytest

from fovea_engines.backends.cpu import LatencyLayout
from fovea_engines.backends.registry import open_session

pytestmark = pytest.mark.slow


class Machine:
    """Calls in a row, each as long as its layout takes at that time."""

    def __init__(self):
        self.lone = LatencyLayout()
        self.now = 0.0
        self.cold = False

    def run(self, until, *, wide_s, narrow_s):
        """Call until then; the layouts of the calls, with the time when each began."""
        calls = []
        while self.now < until:
            wide = self.lone.next(self.now)
            seconds = wide_s if wide else narrow_s
            if calls and calls[-1][1] != wide:
                seconds = max(1.4 * seconds, min(3 * seconds, seconds + 0.02))  # it is cold
            calls.append((self.now, wide))
            self.now += seconds
            self.lone.learn(wide, seconds, self.now)
        return calls


def test_wide_stays_while_it_is_as_fast_as_it_was():
    machine = Machine()
    start = machine.run(1, wide_s=0.010, narrow_s=0.018)
    assert [wide for _, wide in start].count(False) == 2, "one trial of narrow"
    assert all(wide for _, wide in machine.run(60, wide_s=0.011, narrow_s=0.018))


@pytest.mark.parametrize(("wide_s", "narrow_s"), [(0.025, 0.018), (0.3, 0.11), (0.004, 0.003)])
def test_narrow_is_taken_beside_a_neighbour_and_wide_soon_after_it(wide_s, narrow_s):
    machine = Machine()
    machine.run(10, wide_s=narrow_s * 0.6, narrow_s=narrow_s)
    machine.run(14, wide_s=wide_s, narrow_s=narrow_s)
    busy = machine.run(44, wide_s=wide_s, narrow_s=narrow_s)
    tried = sum(wide for _, wide in busy) / len(busy)
    assert 0 < tried <= 0.06

    lost_s = sum(wide_s - narrow_s for _, wide in busy if wide)
    assert lost_s <= 0.045 * 30
    back_s = max(1, (wide_s - narrow_s) / 0.04)
    machine.run(machine.now + back_s + 4 * narrow_s, wide_s=narrow_s * 0.6, narrow_s=narrow_s)
    after = machine.run(machine.now + 5, wide_s=narrow_s * 0.6, narrow_s=narrow_s)
    assert all(wide for _, wide in after)


def test_a_neighbour_that_is_there_from_the_start():
    machine = Machine()
    machine.run(1, wide_s=0.025, narrow_s=0.018)
    calls = machine.run(10, wide_s=0.025, narrow_s=0.018)
    assert sum(wide for _, wide in calls) < 0.06 * len(calls)
    trials = [now for (_, was), (now, wide) in pairwise(calls) if wide and not was]
    assert max(after - before for before, after in pairwise(trials)) < 0.9


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_either_layout_gives_the_same_result(backend, demo_model):
    with open_session(backend, demo_model, max_batch=1, threads=2, streams=2) as session:
        spec = session.inputs[0]
        shape = [1, *spec.shape[1:]]
        feeds = {spec.name: np.random.default_rng(0).random(shape, dtype=np.float32)}
        narrow = session.infer(feeds, alone=False)
        # The first trial of narrow is among the first calls.
        for _ in range(5):
            for name, array in session.infer(feeds, alone=True).items():
                np.testing.assert_allclose(array, narrow[name], rtol=1e-4, atol=1e-4)
