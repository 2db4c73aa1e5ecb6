"""Digits that the demo's detector finds in videos: ids, and counts of lines."""

import numpy as np
import pytest
from tests.server.tracking.digits import FPS, HEIGHT, LENGTH, WIDTH, DigitScene
from tests.server.tracking.mot import COUNTS, OF_NO_MATTER, figures, row, rows_of

from fovea_engines.engine import Engine
from fovea_engines.results.options import PredictOptions
from fovea_server.streams.scene import Scene
from fovea_server.streams.zones import Shape
from fovea_server.tracking.tracker import Tracker, Tuning

pytestmark = pytest.mark.slow

SEEDS = range(20)
# Of boxes that score less, two in three are parts of the photograph behind the digits: with .5 the
# IDF1 of bytetrack is .950, and with .25 it is .87 (benchmarks/track_thresholds.py).
CONF = 0.6
MIDDLE = WIDTH / 2
# The detector may miss a digit that is less visible than this.
WHOLE = 0.75


@pytest.fixture(scope="module")
def scenes(demo_repository):
    """Of each seed: the scene, the shares of the digits that are seen, and what is found."""

    def played(engine, seed):
        scene, seen, found = DigitScene(seed), [], []
        for number in range(LENGTH):
            pixels, shares = scene.frame(number)
            seen.append(shares)
            found.append(engine.detect(pixels, PredictOptions(conf=CONF)))
        return scene, np.array(seen), found

    with Engine.open(demo_repository / "digits" / "1") as engine:
        return {seed: played(engine, seed) for seed in SEEDS}


def tracked(found, name):
    tracker, tuning = Tracker(name), Tuning.of(PredictOptions(conf=CONF, track=name))
    return [tracker.identify(each, None, tuning) for each in found]


@pytest.mark.parametrize("tracker", ["bytetrack", "botsort"])
def test_ids_are_right(scenes, tracker, tmp_path):
    truth = {
        seed: [
            row(frame, number, digit.box(frame), COUNTS if share >= WHOLE else OF_NO_MATTER)
            for frame in range(LENGTH)
            for number, (digit, share) in enumerate(zip(scene.digits, seen[frame], strict=True))
        ]
        for seed, (scene, seen, _) in scenes.items()
    }
    ids = {seed: rows_of(tracked(found, tracker)) for seed, (*_, found) in scenes.items()}
    assert figures(tmp_path, truth, ids)["IDF1"] >= 0.95


def centers(digit):
    return np.array([sum(digit.box(frame)[::2]) / 2 for frame in range(LENGTH)])


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_of_a_line_are_exact(scenes, seed):
    scene, _, found = scenes[seed]
    assert [np.diff(centers(digit) >= MIDDLE).sum() for digit in scene.digits] == [1, 1, 1, 1]
    state = Scene([Shape.parse("line", "middle=0.5,0,0.5,1:anchor=center")], 1 / FPS, 1.5)
    for number, each in enumerate(tracked(found, "botsort")):
        state.see(each, None, (WIDTH, HEIGHT), number / FPS)
    # Every other one goes to the right, which is out, as the line goes down.
    assert state.counts["middle"] == {"in": 2, "out": 2}
