"""Two versions' results for images, compared in the terms of their task, and added up."""

import numpy as np
import pytest

from fovea_engines.evaluation.agreement.measure import measure_detections
from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.maps import SoftMask
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import UnsupportedModel
from fovea_server.rollout.shadow_compare import compare
from fovea_server.rollout.shadow_counts import WORST, ClusteredShare, ShadowCounts
from fovea_server.rollout.shadow_report import decide

LOW = PredictOptions(conf=0.2)


def objects(*rows, **more):
    """Detections of (x, y, side, score, class)."""
    rows = sorted(rows, key=lambda row: -row[3])
    boxes = np.float32([[x, y, x + side, y + side] for x, y, side, _, _ in rows]).reshape(-1, 4)
    scores = np.float32([row[3] for row in rows])
    return Detections(boxes, scores, np.int32([row[4] for row in rows]), **more)


def moved(rng, rows):
    """The objects as another version finds them: some are lost, some new, some in other classes."""
    kept = [row for row in rows if rng.random() < 0.9]
    kept += [(rng.integers(400), rng.integers(400), 60, rng.uniform(0.2, 1), 1)]
    return [
        (
            x + rng.integers(-9, 10),
            y,
            side,
            np.clip(score + rng.normal(0, 0.05), 0.2, 1),
            class_id if rng.random() < 0.9 else 2,
        )
        for x, y, side, score, class_id in kept
    ]


def test_missed_and_extra_are_those_of_the_agreement():
    rng, counts, pairs = np.random.default_rng(3), ShadowCounts(None), []
    for number in range(60):
        rows = [
            (*rng.integers(400, size=2), rng.integers(8, 150), rng.uniform(0.2, 1), rng.integers(3))
            for _ in range(rng.integers(12))
        ]
        live, candidate = objects(*rows), objects(*moved(rng, rows))
        pairs.append((str(number), live, candidate))
        counts.add(compare(live, candidate, LOW))
    want, report = measure_detections(pairs), counts.report()
    assert want.missed > 10 < want.extra
    assert (report.all.missed, report.all.extra) == (want.missed, want.extra)
    assert report.all.overlap == pytest.approx(want.mean_iou)
    assert report.all.score_drift == pytest.approx(want.score_drift, abs=1e-6)
    assert report.changes
    for groups in (report.classes, report.sizes):
        for name in ("objects", "missed", "extra"):
            parts = sum(getattr(each, name) for each in groups.values())
            assert parts == getattr(report.all, name)
    things = report.all.objects + report.all.extra
    assert report.disagreement == pytest.approx((want.missed + want.extra) / things)
    low, high = report.interval
    assert low < report.disagreement < high


def test_what_has_another_class_is_told():
    live = objects((10, 10, 50, 0.9, 0), (200, 10, 20, 0.8, 1))
    candidate = objects((12, 10, 50, 0.9, 2), (200, 10, 20, 0.7, 1))
    counts = ShadowCounts(("cat", "dog", "fox"))
    counts.add(compare(live, candidate, LOW))
    report = counts.report()
    [change] = report.changes
    assert (change.live, change.candidate, change.count) == ("cat", "fox", 1)
    assert {name: each.missed for name, each in report.classes.items()} == {
        "cat": 1,
        "dog": 0,
        "fox": 0,
    }
    assert report.sizes["small"].score_drift == pytest.approx(-0.1)


def test_what_a_request_hides_is_not_lost():
    """At a threshold of .25 the candidate may have scored .24."""
    near, sure = objects((10, 10, 50, 0.26, 0)), objects((10, 10, 50, 0.31, 0))
    assert compare(near, objects(), PredictOptions(conf=0.25)).differing == 0
    assert compare(sure, objects(), PredictOptions(conf=0.25)).differing == 1
    assert compare(near, objects(), LOW).differing == 1


def test_keypoints_and_boxes_that_stand_still_may_differ_in_their_points():
    points = np.float32([[[20, 20, 1], [40, 40, 1]]])
    live = objects((10, 10, 50, 0.9, 0), keypoints=points)
    off = objects((10, 10, 50, 0.9, 0), keypoints=points + np.float32([30, 0, 0]))
    found = compare(live, off, LOW)
    assert (found.overlap_of, found.differing) == ("OKS", 2)
    assert compare(live, live, LOW).differing == 0


def test_classifiers_are_compared_in_their_first_class():
    def classes(*ids):
        return Classes(np.int32(ids), np.linspace(0.8, 0.1, len(ids), dtype=np.float32))

    counts = ShadowCounts(("cat", "dog"))
    for candidate in ((0, 1), (0, 1), (1, 0), (0, 1)):
        counts.add(compare(classes(0, 1), classes(*candidate), LOW))
    report = counts.report()
    assert report.disagreement == 0.25
    assert [(one.live, one.candidate, one.count) for one in report.changes] == [("cat", "dog", 1)]
    assert report.sizes == {}


def test_maps_are_compared_as_a_whole_and_not_with_others():
    dark, bright = (SoftMask(np.full((4, 4), value, np.float32), None) for value in (0.25, 0.5))
    counts = ShadowCounts(None)
    counts.add(compare(dark, bright, LOW))
    assert (counts.report().shared, counts.report().disagreement) == (0.75, 0.25)
    with pytest.raises(UnsupportedModel):
        compare(dark, objects(), LOW)


def test_the_verdict_is_the_limit_against_the_interval():
    counts = ShadowCounts(None)
    assert decide(counts.report(), 0.02) == decide(None, 0.02) == "undecided"
    here, gone = objects((10, 10, 50, 0.9, 0)), objects()
    for number in range(100):
        counts.add(compare(here, gone if number < 10 else here, LOW))
    report = counts.report()
    assert report.interval == pytest.approx((0.0552, 0.1744), abs=2e-3)
    for limit, verdict in ((0.05, "above"), (0.1, "undecided"), (0.2, "below"), (None, None)):
        assert decide(report, limit) == verdict


def test_the_worst_images_are_kept():
    counts = ShadowCounts(None)
    rng = np.random.default_rng(0)
    levels = rng.permutation(WORST + 30)
    for number, count in enumerate(levels):
        rows = [(70 * at, 0, 50, 0.9, 0) for at in range(count)]
        found = compare(objects(*rows), objects(), LOW)
        counts.add(found)
        if counts.is_worst(found):
            counts.keep(found, number, f"{number}.jpg", "")
    kept = [one.missed for one in counts.report().worst]
    assert kept == sorted(levels.tolist(), reverse=True)[:WORST]


def test_a_share_is_as_sure_as_its_clusters():
    def share(*parts):
        made = ClusteredShare()
        for part in parts:
            made.add(*part)
        return made.interval

    alone = share(*[(1, 1)] * 10, *[(0, 1)] * 90)
    assert alone == pytest.approx((0.0552, 0.1744), abs=2e-3)  # Wilson's of 10 in 100
    together = share((10, 10), *[(0, 10)] * 9)
    assert together[1] - together[0] > 2 * (alone[1] - alone[0])
    assert share(*[(0, 10)] * 10)[1] == pytest.approx(share(*[(0, 1)] * 10)[1])
    assert share((0, 0)) is None
    rng, inside = np.random.default_rng(5), 0
    for _ in range(200):
        parts = [(rng.binomial(8, rng.choice([0.02, 0.3])), 8) for _ in range(100)]
        low, high = share(*parts)
        inside += low <= 0.16 <= high
    assert 180 <= inside <= 199
