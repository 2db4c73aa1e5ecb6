"""The table and the notes of a search: each setting once, and nothing claimed that is noise."""

import math
import subprocess
import sys
import time
from dataclasses import replace
from xml.etree import ElementTree

import psutil
import pytest
from rich.console import Console

from fovea_engines.repository.repository import ModelRepository
from fovea_server.bench.tune.candidates import find_candidates
from fovea_server.bench.tune.run import Run, fold, fold_compared
from fovea_server.bench.tune.search import Search
from fovea_server.bench.tune.setting import Setting
from fovea_server.bench.tune.trials import ForeignCpu
from fovea_server.cli.tune_tables import busy_note, draw, notes, table

pytestmark = pytest.mark.slow

NOW, OTHER, THIRD = Setting(2, 2, 2, 0, 0), Setting(1, 2, 2, 0, 0), Setting(2, 1, 1, 0, 0)
# Burns half a second of its own, however long that takes, then waits for its parent.
BURN = "import time\nwhile time.process_time() < 1: pass\nprint(flush=True)\ninput()"


@pytest.fixture
def candidates(demo_versions):
    return find_candidates(ModelRepository(demo_versions), "digits")[0]


def search_of(*runs: Run) -> Search:
    def measure(*_):
        raise AssertionError

    return Search([NOW, OTHER, THIRD], (1, 4, 8), 500.0, measure, list(runs))


def printed(shown) -> list[str]:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(shown)
    return [line for line in capture.get().splitlines() if " fp32 " in line]


def test_a_setting_that_ran_often_is_a_row_with_its_spread(candidates):
    """The rows of a real run on a noisy machine, where the chosen setting seemed to beat itself."""
    long = [Run(NOW, 4, rate, p99, long=True) for rate, p99 in ((21, 430), (25, 410), (22, 422))]
    now = fold(long)
    short = [Run(NOW, 4, 27.5, 278.7), Run(NOW, 4, 34.4, 342.5), Run(NOW, 8, 17.2, 643)]
    search = search_of(*short, *long, Run(THIRD, 4, 12, 395), Run(OTHER, 4, 11, 600))
    first, second = printed(table("digits", candidates, search, now, now))
    assert first.split()[:3] == ["12.0", "395.0", "4"]
    assert second.split()[:4] == ["22.0", "(21.0-25.0)", "422.0", "(410.0-430.0)"]
    assert second.split()[-2:] == ["now,", "chosen"]
    told = list(notes({1: "a", 2: "b"}, search, now, now))
    assert not any("with the present setting" in note for note in told)


def test_what_did_not_win_again_is_not_shown_above_what_was_chosen(candidates):
    now, best = Run(NOW, 4, 20, 400), fold([Run(OTHER, 4, 25, 300), Run(OTHER, 4, 27, 310)])
    search = search_of(now, *best.repeats, Run(THIRD, 4, 40, 200))
    rows = printed(table("digits", candidates, search, best, now))
    assert [row.split()[-1] for row in rows] == ["chosen", "now"]
    [_, gain] = notes({1: "a", 2: "b"}, search, best, now)
    assert gain == (
        "With 4 clients: 20.0 images/s with the present setting, "
        "26.0 with the chosen setting (x1.30)."
    )


def test_settings_are_compared_under_the_load_of_the_best():
    best = Run(NOW, 4, 20, 400)
    runs = [best, Run(OTHER, 8, 30, 800), Run(OTHER, 4, 18, 410), Run(THIRD, 1, 5, 90)]
    runs += [Run(THIRD, 8, 9, 450), replace(best, clients=8, failure="errors")]
    assert {(run.setting, run.clients) for run in fold_compared(runs, best, 500.0)} == {
        *((NOW, 4), (OTHER, 4), (THIRD, 8)),
    }


def test_a_busy_machine_is_named():
    runs = [replace(Run(NOW, 4, 20, 400), taken_cores=taken) for taken in (0.05, 1.3, 0.1)]
    assert busy_note(runs[::2], cores=2) == ""
    note = busy_note(runs, cores=2)
    assert "in 1 of 3 runs other programs" in note
    assert "used up to 1.3 of 2 cores" in note


def busy_seconds():
    """Seconds that all cores have worked for somebody, or that a host has taken from them."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + getattr(times, "steal", 0.0)


def test_cores_that_others_take_are_measured_and_those_of_children_are_not():
    began = time.monotonic()
    cores = len(psutil.Process().cpu_affinity())
    others, before = ForeignCpu(cores), busy_seconds()
    # A child of nobody here: its parent has ended.
    parent = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    foreign = subprocess.Popen(
        [sys.executable, "-c", parent, BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    own = subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert foreign.stdout.readline() == own.stdout.readline() == b"\n"
    foreign_s = others.mean_cores() * (time.monotonic() - began)
    every_s = busy_seconds() - before
    foreign.communicate(b"\n")
    own.communicate(b"\n")
    assert 0.4 < foreign_s < every_s - 0.4


def test_a_run_without_answers_is_not_drawn():
    silent, answered = Run(THIRD, 4, 0.0, math.inf), Run(NOW, 4, 20.0, 90.0)
    for runs, best in [((silent, answered), answered), ((silent,), silent)]:
        drawing = ElementTree.fromstring(draw("digits", {2: "fp32"}, search_of(*runs), best))
        assert "inf" not in ElementTree.tostring(drawing, "unicode")
