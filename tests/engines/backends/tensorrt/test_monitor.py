"""What is told of a build while TensorRT is at it, from threads of its own."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fovea_engines.backends.tensorrt.monitor import Phases, run_cancellable
from fovea_engines.progress import Progress


class Told(Progress):
    def __init__(self):
        super().__init__()
        self.texts = []

    def now(self, text):
        self.texts.append(text)


@pytest.fixture
def told():
    return Told()


def test_the_phase_that_began_last_and_the_one_it_is_part_of(told):
    phases = Phases(told)
    phases.start("Building engine", None, 6)
    phases.start("Computing costs", "Building engine", 5)
    phases.start("Timing tactics", "Computing costs", 300)
    assert phases.step("Timing tactics", 0)
    phases.finish("Timing tactics")
    assert phases.step("Computing costs", 0)
    phases.finish("Computing costs")
    phases.finish("Building engine")
    assert told.texts == [
        "Building engine 0/6",
        "Computing costs 0/5",
        "Computing costs 0/5: Timing tactics 0/300",
        "Computing costs 0/5: Timing tactics 1/300",
        "Computing costs 0/5",
        "Computing costs 1/5",
        "Building engine 0/6",
        "",
    ]


def test_a_single_step_is_not_counted(told):
    Phases(told).start("Optimizing", None, 1)
    assert told.texts == ["Optimizing"]


def test_a_cancelled_build_stops_at_its_next_step(told):
    phases = Phases(told)
    phases.start("Building engine", None, 6)
    assert phases.step("Building engine", 0)
    phases.cancel()
    assert not phases.step("Building engine", 1)
    assert told.texts[-1] == "stopping after this step"


def test_a_step_of_a_phase_that_has_ended_does_no_harm(told):
    phases = Phases(told)
    assert phases.step("late", 3)
    phases.finish("late")
    assert told.texts == [""]


def test_a_build_goes_on_where_its_phases_cannot_be_shown(told, caplog):
    """TensorRT cancels a build whose monitor raises."""

    def closed(text):
        raise BrokenPipeError("the terminal is gone")

    told.now = closed
    phases = Phases(told)
    phases.start("Building engine", None, 6)
    assert phases.step("Building engine", 0)
    phases.finish("Building engine")
    assert caplog.messages == [
        "cannot show the progress of the build any more: the terminal is gone"
    ]


def test_phases_of_many_threads(told):
    phases = Phases(told)

    def one(name):
        phases.start(name, None, 200)
        for step in range(200):
            phases.step(name, step)
        phases.finish(name)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, map(str, range(8))))
    assert told.texts[-1] == ""
    assert len(told.texts) == 8 * 202


def test_what_the_build_raises_is_raised(told):
    def fails():
        raise ValueError("in another thread")

    with pytest.raises(ValueError, match="in another thread"):
        run_cancellable(fails, Phases(told))
    assert run_cancellable(lambda: 3, Phases(told)) == 3
