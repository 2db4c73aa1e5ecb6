"""Distances between images of a build and live ones."""

import numpy as np
import pytest

from fovea_engines.repository.baseline import MIN_LIVE, Baseline, select_values
from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections

PIXELS = 640 * 480


def images(seed, count, *, classes=4, size=60.0, spread=0.4, mean=4):
    """Images with a few objects each, as a detector may find them."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        number = rng.poisson(mean)
        sides = size * np.exp(spread * rng.normal(size=number))
        corners = rng.uniform(0, 200, (number, 2))
        boxes = np.concatenate([corners, corners + sides[:, None]], 1).astype(np.float32)
        scores = rng.uniform(0.1, 1, number).astype(np.float32)
        ids = rng.integers(0, classes, number).astype(np.int32)
        found.append(select_values(Detections(boxes, scores, ids), PIXELS))
    return found, rng.normal(0.5, 0.1, count).tolist()


def distances(baseline, found, brightness):
    live = baseline.count(found, brightness)
    return {name: each.distance(live[name]) for name, each in baseline.quantities.items()}


@pytest.mark.parametrize(("count", "near"), [(60, 0.2), (256, 0.1)])
def test_others_of_the_same_kind_stay_near_and_of_another_kind_are_far(count, near):
    for seed in range(20):
        baseline = Baseline.of("val", *images(seed, count))
        same = distances(baseline, *images(seed + 100, 500))
        assert max(same.values()) < near, same
        found, brightness = images(seed + 200, 500)
        dark = distances(baseline, found, [0.4 * each for each in brightness])
        assert dark["brightness"] > 0.25 > max(dark["scores"], dark["sizes"])
        assert distances(baseline, *images(seed + 200, 500, size=120))["sizes"] > 0.25
        assert distances(baseline, *images(seed + 200, 500, classes=2))["classes"] > 0.25
        assert distances(baseline, *images(seed + 200, 500, mean=1))["objects"] > 0.25


def test_few_images_say_nothing_or_little():
    for seed in range(20):
        baseline = Baseline.of("val", *images(seed, 60))
        found, brightness = images(seed + 100, MIN_LIVE - 1, mean=50)
        few = distances(baseline, found, brightness)
        assert set(few.values()) == {None}
        few = distances(baseline, *images(seed + 100, 60))
        assert max(few.values()) < 0.25, few


def test_an_image_with_many_objects_counts_once():
    found, brightness = images(0, 100)
    crowd, _ = images(1, 1, classes=1, mean=2000)
    one, many = (Baseline.of("val", found + crowd[:n], brightness) for n in (0, 1))
    for name in ("scores", "classes", "sizes"):
        sums = [sum(each.quantities[name].counts) for each in (one, many)]
        assert sums[1] - sums[0] == pytest.approx(1, abs=0.01)


def test_bins_that_no_image_of_the_build_was_in_are_seen():
    same = [select_values(Classes(np.int32([3, 1]), np.float32([0.9, 0.05])), PIXELS)] * 50
    baseline = Baseline.of("val", same, [0.5] * 50)
    assert set(baseline.quantities) == {"scores", "classes", "brightness"}
    assert distances(baseline, same, [0.5] * 50) == dict.fromkeys(baseline.quantities, 0)
    other = [select_values(Classes(np.int32([1, 3]), np.float32([0.8, 0.05])), PIXELS)] * 50
    assert min(distances(baseline, other, [0.4] * 50).values()) > 1
