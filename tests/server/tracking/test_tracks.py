"""Ids of tracked frames are those of the package `trackers`, whatever the order of arrival."""

import asyncio
import csv
import random
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import supervision
import trackers
from tests.server.tracking.mot import figures, row, rows_of

from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption, InvalidRequest, OutOfOrder, QueueFull
from fovea_server.tensors.messages import ImageResult
from fovea_server.tracking import tracker as packages
from fovea_server.tracking import tracks as module
from fovea_server.tracking.tracker import Tracker, Tuning
from fovea_server.tracking.tracks import Tracks

pytestmark = pytest.mark.real

SCENES = Path(sys.prefix) / "vision" / "site-packages" / "motmetrics" / "data"
BY_NAME = {
    "bytetrack": trackers.ByteTrackTracker,
    "sort": trackers.SORTTracker,
    "ocsort": trackers.OCSORTTracker,
    "botsort": trackers.BoTSORTTracker,
}


def lines_of(scene, source):
    """Frame from 0, id and box, x1 y1 x2 y2, of each line of a scene of MOTChallenge."""
    file = SCENES / scene / source
    if not file.exists():
        pytest.skip(f"{file} is absent: `make test-real` installs it")
    for frame, number, *box in csv.reader(file.read_text().splitlines()):
        x, y, w, h = map(float, box[:4])
        yield int(frame) - 1, int(number), (x, y, x + w, y + h)


def frames_of(scene, source="gt.txt", least=0.2):
    """The objects of each frame, with scores that cross all thresholds of the trackers."""
    boxes = defaultdict(list)
    for frame, _, box in lines_of(scene, source):
        boxes[frame].append(box)
    return [found_in(boxes[frame], frame, least) for frame in range(max(boxes) + 1)]


def found_in(boxes, seed, least=0.2):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    scores = np.random.default_rng(seed).uniform(least, 1, len(boxes)).astype(np.float32)
    return Detections(boxes, scores, np.zeros(len(boxes), np.int32))


def by_hand(tracker, frames):
    """Ids as the package gives them from 0 on, with our thresholds; -1 until it is sure."""
    tuning = Tuning.of(PredictOptions(track=tracker))
    tracker, ids = BY_NAME[tracker](), []
    tracker.instant_first_frame_activation = False
    tracker.high_conf_det_threshold = tuning.high
    tracker.track_activation_threshold = tuning.new
    tracker.minimum_consecutive_frames = tuning.min_frames
    for found in frames:
        given = supervision.Detections(
            found.boxes, confidence=found.scores, data={"row": np.arange(len(found))}
        )
        tracked = tracker.update(given)
        row = dict(zip(tracked.data.get("row", ()), tracked.tracker_id, strict=True))
        ids.append([int(row.get(each, -1)) for each in range(len(found))])
    return ids


def renamed(ids):
    """Ids by the order in which they come, as two trackers name them otherwise."""
    names = {}
    return [[names.setdefault(n, len(names)) if n >= 0 else -1 for n in row] for row in ids]


def sure(ids):
    return [[n if n > 0 else -1 for n in row] for row in ids]


async def sent(tracks, tracker, stream, frames, in_flight, chance):
    """Ids of frames that arrive in order and are computed in any, so many at once."""
    ids, places = [None] * len(frames), asyncio.Semaphore(in_flight)

    async def one(number):
        async with places:
            options = PredictOptions(track=tracker, stream_id=stream, frame=number)
            await asyncio.sleep(chance.uniform(0, 0.002))
            turn = tracks.turn_of("model", options, 1)
            with turn:
                await asyncio.sleep(chance.uniform(0, 0.004))
                result = ImageResult(1, 1, 1, found=frames[number])
                await turn.identify([result])
                ids[number] = result.found.track_ids.tolist()

    await asyncio.gather(*map(one, range(len(frames))))
    return ids


@pytest.mark.parametrize(
    ("scene", "in_flight", "of"),
    [
        ("TUD-Campus", 1, {}),
        ("TUD-Stadtmitte", 16, {}),
        # Detections, of which a third lacks and a tenth is wrong.
        ("TUD-Campus", 4, {"source": "test.txt", "least": 0.8}),
        ("TUD-Stadtmitte", 4, {"source": "test.txt", "least": 0.8}),
    ],
)
@pytest.mark.parametrize("tracker", BY_NAME)
def test_ids_are_those_of_the_package(tracker, scene, in_flight, of):
    frames = frames_of(scene, **of)
    expected = by_hand(tracker, frames)
    ids = asyncio.run(sent(Tracks(60), tracker, "a", frames, in_flight, random.Random(in_flight)))
    assert renamed(sure(ids)) == renamed(expected)
    assert len({each for row in sure(ids) for each in row} - {-1}) > 3


@pytest.mark.parametrize("share", [1, 0.6, 0.45])
@pytest.mark.parametrize("tracker", BY_NAME)
def test_ids_do_not_depend_on_how_sure_a_detector_is(tracker, share, tmp_path):
    """The same boxes, scored by detectors that are less sure, with the `conf` of each."""
    truth, rows = {}, {}
    tuning = Tuning.of(PredictOptions(conf=0.5 * share, track=tracker))
    for scene in ("TUD-Campus", "TUD-Stadtmitte"):
        truth[scene] = [row(*line) for line in lines_of(scene, "gt.txt")]
        one, frames = Tracker(tracker), frames_of(scene, "test.txt", least=0.5)
        scored = [replace(found, scores=found.scores * np.float32(share)) for found in frames]
        rows[scene] = rows_of([one.identify(found, None, tuning) for found in scored])
    found = figures(tmp_path, truth, rows)
    assert found["IDF1"] > 0.5, found


def seen(*objects):
    """One frame of objects: x of a box, class and score."""
    boxes = np.array([(x, 0, x + 20, 40) for x, _, _ in objects], np.float32).reshape(-1, 4)
    classes, scores = ([each[n] for each in objects] for n in (1, 2))
    return Detections(boxes, np.array(scores, np.float32), np.array(classes, np.int32))


def test_an_object_keeps_the_class_that_most_scores_are_for():
    tracker, tuning = Tracker("bytetrack"), Tuning.of(PredictOptions())
    classes = [2, 2, 7, 2, 2, 67, 2, 2]
    scores = [0.9, 0.9, 0.5, 0.9, 0.9, 0.6, 0.9, 0.9]
    frames = [seen((2 * n, *each)) for n, each in enumerate(zip(classes, scores, strict=True))]
    found = [tracker.identify(frame, None, tuning) for frame in frames]
    assert [int(each.track_ids[0]) for each in found] == [-1, 1, 1, 1, 1, 1, 1, 1]
    assert {int(each.class_ids[0]) for each in found} == {2}
    # It is away, and for two frames another class is found beside its place: another object.
    jumped = [tracker.identify(seen((x, 62, 0.8)), None, tuning) for x in (30, 31)]
    ids = [(int(each.track_ids[0]), int(each.class_ids[0])) for each in jumped]
    assert ids == [(1, 2), (2, 62)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Tuning(0.3025, 0.3475, 1)),
        ({"conf": 0.6}, Tuning(0.628, 0.652, 1)),
        ({"track_new": 0.26}, Tuning(0.26, 0.26, 1)),
        ({"track_high": 0.5}, Tuning(0.5, 0.5, 1)),
        ({"track_high": 0.2, "track_new": 0.9, "min_frames": 3}, Tuning(0.2, 0.9, 3)),
    ],
)
def test_thresholds_follow_conf_unless_they_are_given(options, expected):
    tuning = Tuning.of(PredictOptions(track="bytetrack", **options))
    assert tuning.high == pytest.approx(expected.high)
    assert tuning.new == pytest.approx(expected.new)
    assert tuning.min_frames == expected.min_frames


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"track": "sort", "track_high": 0.5}, "track_high has no effect on the tracker sort"),
        ({"track": "ocsort", "track_new": 0.5}, "track_new has no effect on the tracker ocsort"),
        (
            {"track": "botsort", "track_new": 0.4, "track_high": 0.5},
            "raise track_new, or lower track_high",
        ),
        ({"track": "bytetrack", "track_new": 1.5}, "track_new is 1.5; it must be from 0 to 1"),
        ({"track": "bytetrack", "min_frames": 0}, "min_frames is 0; it must be from 1"),
        ({"min_frames": 2}, "need track"),
    ],
)
def test_thresholds_that_are_none(options, words):
    with pytest.raises(InvalidOption, match=words):
        Tracks(60).turn_of("m", PredictOptions(stream_id=options.get("track"), **options), 1)


def test_streams_do_not_mix():
    scenes = [frames_of("TUD-Campus"), frames_of("TUD-Stadtmitte"), frames_of("TUD-Campus")[20:]]
    chosen = [(scenes[n % 3], list(BY_NAME)[n % 4]) for n in range(8)]

    async def all_at_once():
        tracks = Tracks(60)
        asked = [
            sent(tracks, tracker, str(n), frames, 4, random.Random(n))
            for n, (frames, tracker) in enumerate(chosen)
        ]
        return await asyncio.gather(*asked)

    found = asyncio.run(all_at_once())
    expected = [by_hand(name, frames) for frames, name in chosen]
    assert [renamed(sure(each)) for each in found] == [renamed(each) for each in expected]


def ask(tracks, frame=None, stream="a", images=1, tracker="bytetrack"):
    return tracks.turn_of("m", PredictOptions(track=tracker, stream_id=stream, frame=frame), images)


async def identified(turn, found=1):
    with turn:
        result = ImageResult(1, 1, 1, found=found_in([[0, 0, 10, 10]] * found, 0))
        await turn.identify([result])
    return result


def test_a_frame_behind_the_last_is_refused_with_its_number():
    async def run():
        tracks = Tracks(60)
        await identified(ask(tracks, 0))
        await identified(ask(tracks, 7))
        with pytest.raises(OutOfOrder, match="frame 5"):
            await identified(ask(tracks, 5))
        with pytest.raises(OutOfOrder, match="frame 7"):
            await identified(ask(tracks, 7))
        await identified(ask(tracks, 5, "other stream"))
        await identified(ask(tracks))  # the next
        with pytest.raises(OutOfOrder, match="frame 8"):
            await identified(ask(tracks, 8))
        families = {each.name: each.samples for each in tracks.families()}
        assert families["fovea_tracked_streams"] == [("", {"model": "m"}, 2)]
        assert families["fovea_tracked_frames_total"] == [("", {"model": "m"}, 4)]
        assert families["fovea_frames_out_of_order_total"] == [("", {"model": "m"}, 3)]

    asyncio.run(run())


def test_a_frame_waits_for_those_before_it_and_not_for_one_that_failed():
    async def run():
        tracks, done = Tracks(60), []

        async def late(number, images=1):
            with (turn := ask(tracks, number, images=images)):
                await turn.identify([])
                done.append(number)

        first, failing = ask(tracks, 0), ask(tracks, 1)
        with first:
            others = [asyncio.create_task(late(n, 2)) for n in (4, 2)]
            await asyncio.sleep(0)
            with pytest.raises(ValueError, match="broken image"), failing:
                raise ValueError("broken image")
            with pytest.raises(OutOfOrder), ask(tracks, 3):
                pass
            await asyncio.sleep(0.3)  # longer than for one that is missing
            assert done == []
            await first.identify([])
        await asyncio.gather(*others)
        assert done == [2, 4]

    asyncio.run(run())


def test_a_cancelled_request_lets_the_next_go_on():
    async def run():
        tracks = Tracks(60)
        with ask(tracks, 0) as _:
            waiting = [asyncio.create_task(identified(ask(tracks, n))) for n in (1, 2)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await asyncio.wait(waiting[:1])
        assert (await waiting[1]).found.track_ids is not None

    asyncio.run(run())


def test_the_number_of_streams_is_bounded(monkeypatch):
    async def run():
        monkeypatch.setattr(module, "MAX_STREAMS", 2)
        tracks = Tracks(3600)
        for name in "abab":
            await identified(ask(tracks, stream=name))
        with pytest.raises(QueueFull, match="--track-idle-s"):
            await identified(ask(tracks, stream="c"))

    asyncio.run(run())


def test_streams_without_a_frame_are_forgotten():
    async def run():
        tracks = Tracks(0.01)
        await identified(ask(tracks, 9, "a"))
        with (held := ask(tracks, 9, "held")):
            await asyncio.sleep(0.05)
            await identified(ask(tracks, 0, "a"))  # begins again
            await held.identify([])
        await asyncio.sleep(0.05)
        assert next(iter(tracks.families())).samples == [("", {"model": "m"}, 0)]

    asyncio.run(run())


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"'fovea-serve\[streams\]'"):
        ask(Tracks(60))
