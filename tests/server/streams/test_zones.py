"""Lines and zones: counts are exact, and times in zones right to two frames, in scenes of boxes."""

import asyncio
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import supervision
from tests.built import build
from tests.server.streams.walks import FPS, HEIGHT, LENGTH, WIDTH, frame_of, walks

from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption
from fovea_server.dataplane.reach import EVERYWHERE
from fovea_server.streams.events.config import EventConfig
from fovea_server.streams.frames.address import SourceAddress
from fovea_server.streams.frames.camera import Camera
from fovea_server.streams.frames.reader import SourceSettings
from fovea_server.streams.scene import Scene
from fovea_server.streams.zones import ANCHORS, Shape
from fovea_server.tracking.tracker import Tracker, Tuning

LABELS = ("person", "dog")
DEBOUNCE_S = 0.2
SLACK = 1e-3
YARD = (200.5, 100.5, 450.5, 280.5)


def played(scene, *shapes, lost_s=2.0):
    state = Scene(shapes, DEBOUNCE_S, lost_s)
    changes = [
        change
        for frame in range(LENGTH)
        for change in state.see(frame_of(scene, frame), LABELS, (WIDTH, HEIGHT), frame / FPS)
    ]
    return state, [*changes, *state.end()]


def runs_of(values):
    """Each value, and in how many places in a row it is: seen frames alone."""
    starts = [0, *(n for n in range(1, len(values)) if values[n] != values[n - 1]), len(values)]
    return [(values[a], a, b) for a, b in pairwise(starts) if a < b]


def crossings(walk, a, b):
    """Ways over the line from a to b, by solving for the point where both paths meet."""
    feet, times = walk.feet[walk.seen], np.flatnonzero(walk.seen) / FPS
    (ax, ay), (bx, by) = a, b
    sides = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) < 0 for x, y in feet]
    # Who is on a side for less than the debounce has not been there.
    kept = [
        (side, start, end)
        for side, start, end in runs_of(sides)
        if start == 0 or times[end - 1] - times[start] > DEBOUNCE_S - SLACK
    ]
    for (before, _, _), (now, start, _) in pairwise(kept):
        if before == now:
            continue
        p, q = feet[start - 1], feet[start]
        way = np.linalg.solve(np.array([q - p, np.subtract(a, b)]).T, np.subtract(a, p))
        if 0 <= way[1] <= 1:
            yield "in" if now else "out"


@pytest.mark.parametrize("hidden", [3, 15])
@pytest.mark.parametrize("seed", range(20))
def test_counts_of_lines_are_exact(seed, hidden):
    scene = walks(seed, hidden)
    shapes = [
        Shape.parse("line", "door=0.3,0.3,0.3,0.9"),
        Shape.parse("line", "gate=100,200,500,210"),
        Shape.parse("line", "dogs=500,210,100,200:classes=dog"),
    ]
    state, changes = played(scene, *shapes, lost_s=5.0)
    for shape in shapes:
        expected = [
            (walk.track_id, way)
            for walk in scene
            if shape.counts(walk.class_id, LABELS[walk.class_id])
            for way in crossings(walk, *shape.scale_to(WIDTH, HEIGHT))
        ]
        told = [
            (each.subject.track_id, each.direction)
            for each in changes
            if each.kind == "crossed" and each.shape == shape.name
        ]
        assert sorted(told) == sorted(expected)
        ways = [way for _, way in expected]
        assert state.counts[shape.name] == {"in": ways.count("in"), "out": ways.count("out")}
    # Were there no crossings, the counts would say nothing.
    assert seed or sum(each.kind == "crossed" for each in changes) > 10


def test_supervision_calls_the_same_way_in():
    line = supervision.LineZone(
        supervision.Point(100, 200), supervision.Point(500, 200), [supervision.Position.CENTER]
    )
    ours = Scene([Shape.parse("line", "a=100,200,500,200:anchor=center")], 0.0, 2.0)
    for frame, y in enumerate((150, 250, 150, 150, 250, 150)):
        boxes = np.array([[290, y, 310, y + 20]], np.float32)
        line.trigger(supervision.Detections(boxes, tracker_id=np.array([7])))
        ours.see(tracked(boxes, [7]), None, (640, 360), frame / 10)
        assert ours.counts["a"] == {"in": line.in_count, "out": line.out_count}
    assert line.in_count == 2


def test_supervision_has_the_same_points_of_boxes():
    box = np.array([[10, 20, 40, 100]], np.float32)
    for name in ANCHORS:
        shape = Shape.parse("line", f"a=0,0,1,1:anchor={name}")
        theirs = supervision.Detections(box).get_anchors_coordinates(
            supervision.Position[name.upper()]
        )
        assert shape.point_of(box[0].tolist()) == tuple(theirs[0].tolist())
    assert len(ANCHORS) == 9


def tracked(boxes, ids, class_id=0):
    count = len(ids)
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.ones(count, np.float32),
        np.full(count, class_id, np.int32),
        track_ids=np.array(ids, np.int32),
    )


def test_an_object_has_come_from_where_the_tracker_was_not_sure_of_it():
    """At five frames a second a car is past the line when it gets its id."""
    state = Scene((Shape.parse("line", "mid=0,0.5,1,0.5"),), 0.3, 2.0)
    place = [(100, top, 140, top + 20) for top in (100, 150, 210, 260, 290)]
    told = [
        state.see(tracked([box], [7 if n > 1 else -7]), None, (WIDTH, HEIGHT), 0.2 * n)
        for n, box in enumerate(place)
    ]
    changes = [change for each in told for change in each]
    assert [str(change.kind) for change in changes].count("crossed") == 1
    assert {each.subject.track_id for each in changes if each.subject} == {7}
    assert "appeared" in [str(change.kind) for change in told[2]]


def stays(walk):
    """Each stay in the yard by where the object truly was: frames, seen frames, hidden at its ends.

    The last: frames for which it was hidden while it came, and while it went.
    """
    x1, y1, x2, y2 = YARD
    inside = [bool(x1 < x < x2 and y1 < y < y2) for x, y in walk.feet]
    hidden = [run[1:] for run in runs_of(walk.seen.tolist()) if not run[0]]
    return [
        (
            end - start,
            int(walk.seen[start:end].sum()),
            sum(b - a for a, b in hidden for border in (start, end) if a <= border <= b),
        )
        for is_in, start, end in runs_of(inside)
        if is_in
    ]


@pytest.mark.parametrize("seed", range(20))
def test_times_in_zones_are_right_to_two_frames(seed):
    # Who is in the yard once, as each is told by its id.
    scene = [walk for walk in walks(seed, objects=30) if len(stays(walk)) == 1]
    x1, y1, x2, y2 = YARD
    _, changes = played(scene, Shape.parse("zone", f"yard={x1},{y1},{x2},{y1},{x2},{y2},{x1},{y2}"))
    left = {each.subject.track_id: each.time_s for each in changes if each.kind == "left"}
    entered = [each.subject.track_id for each in changes if each.kind == "entered"]
    assert len(entered) == len(set(entered)) == len(left)
    for walk in scene:
        ((frames, seen, hidden),) = stays(walk)
        if walk.track_id in left:
            # Nobody sees when one who is hidden comes or goes.
            assert abs(left[walk.track_id] * FPS - frames) <= 2 + hidden
        else:
            assert (seen - 1) / FPS < DEBOUNCE_S
    assert len(left) > 2


def test_occupancy_follows_and_ends_at_nobody():
    state, changes = played(walks(3), Shape.parse("zone", "yard=0,0,1,0,1,1,0,1"))
    counts = [each.counts["objects"] for each in changes if each.kind == "count"]
    assert max(counts) > 2
    assert counts[-1] == 0
    assert state.counts == {"yard": {"objects": 0}}
    kinds = [each.kind for each in changes]
    assert kinds.count("entered") == kinds.count("left")
    assert kinds.count("appeared") == kinds.count("lost") == 8


def test_an_id_that_is_seen_for_less_time_did_nothing():
    scene = Scene([Shape.parse("zone", "all=0,0,1,0,1,1,0,1")], 0.2, 0.5)
    box = [[100, 100, 120, 150]]
    told = [scene.see(tracked(box, [1]), None, (640, 360), n / 10) for n in (0, 1)]
    told += [scene.see(tracked([], []), None, (640, 360), n / 10) for n in range(2, 20)]
    assert not any(told)


@pytest.mark.parametrize("fps", [2, 5, 12.5, 30])
def test_who_leaves_soon_after_the_line_is_counted_at_every_rate(fps):
    events = EventConfig.parse({"lines": "door=0.5,0,0.5,1"})
    scene = Scene(events.shapes, events.debounce_s, events.lost_s)
    told = []
    # From left to right in two seconds; the line is passed after 1 s.
    for n in range(int(2 * fps) + 1):
        x = 640 * n / fps / 2
        changes = scene.see(tracked([[x - 10, 100, x + 10, 150]], [1]), None, (640, 360), n / fps)
        told += [n / fps for each in changes if each.kind == "crossed"]
    (when,) = told
    assert 1.3 - SLACK <= when <= 1.3 + 2 / fps


def test_an_object_counts_after_a_time_in_the_zone():
    scene = Scene([Shape.parse("zone", "yard=0,0,0.5,0,0.5,1,0,1:after=3s")], 0.1, 1.0)
    inside, outside = [[100, 100, 120, 150]], [[500, 100, 520, 150]]
    told = []
    for frame in range(60):
        # A step over the border that is shorter than two frames ends no stay.
        box = outside if frame in (15,) or frame > 49 else inside
        told += [
            (frame, each) for each in scene.see(tracked(box, [1]), None, (640, 360), frame / 10)
        ]
    told = [(frame, each) for frame, each in told if each.shape and each.kind != "count"]
    assert [(frame, each.kind) for frame, each in told] == [(30, "entered"), (51, "left")]
    assert math.isclose(told[1][1].time_s, 4.95)


def test_a_new_size_of_the_picture_moves_fractions():
    scene = Scene([Shape.parse("zone", "right=0.5,0,1,0,1,1,0.5,1")], 0.0, 1.0)
    box = [[300, 100, 320, 150]]
    assert scene.see(tracked(box, [1]), None, (640, 360), 0.0)[-1].kind == "appeared"
    assert [each.kind for each in scene.see(tracked(box, [1]), None, (320, 180), 0.1)] == [
        "entered",
        "count",
    ]


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("line", "0.1,0.6,0.9,0.6", "has no '='.*door=0.1,0.6,0.9,0.6"),
        ("line", "door:0.1,0.6,0.9,0.6", "has no '=' between its name and its points"),
        ("line", "x=1", "line x has one number, but needs four numbers"),
        ("line", "=0.1,0.6,0.9,0.6", "must begin with a name"),
        ("line", "a b=0.1,0.6,0.9,0.6", "must begin with a name"),
        ("line", "door=0.1,0.6,0.9", "has 3 numbers, but needs four numbers"),
        ("line", "door=0.1,0.6,0.9,0.6,1,1", "has 6 numbers"),
        ("line", "door=0.1,0.6,0.1,0.6", "has no length"),
        ("line", "door=0.1,x,0.9,0.6", "must be numbers of 0 or more"),
        ("line", "door=nan,0,1,1", "must be numbers of 0 or more"),
        ("line", "door=-1,0,1,1", "must be numbers of 0 or more"),
        ("line", "door=0.5,300,600,300", "mix fractions"),
        ("line", "door=0,0,1,1:anchor=feet", "must be one of bottom_center, bottom_left"),
        ("line", "door=0,0,1,1:clases=person", "did you mean 'classes'"),
        ("line", "door=0,0,1,1:after=3s", "unknown key 'after' of line door"),
        ("zone", "yard=0,0,1,1", "has 4 numbers, but needs x,y of three"),
        ("zone", "yard=0,0,0.5,0.5,1,1", "has no area"),
        ("zone", "yard=0,0,1,0,1,1:after=soon", "must be a time"),
        ("zone", "yard=0,0,1,0,1,1:after=30", "is '30'; it must be a time"),
    ],
)
def test_shapes_that_are_not(kind, text, words):
    with pytest.raises(InvalidOption, match=words):
        Shape.parse(kind, text)


# A clip of a street that runs on end. Its frames are decoded and detected once: in real time twenty
# rounds would take ten minutes.
EVERY_S, TIMES = 0.16, 20
OPTIONS = PredictOptions(conf=0.25)


@pytest.fixture(scope="module")
def clip(shared, tmp_path_factory):
    """Time, size and objects of every other frame, as a stream would have them."""
    repository = tmp_path_factory.mktemp("repository")
    build(BuildPlan(shared / "models" / "yolox_nano.onnx", "yolox", repository, "onnxruntime"))
    address = SourceAddress.parse(str(shared / "data" / "video" / "car-detection.mp4"))
    camera = Camera(address, SourceSettings(every_s=EVERY_S), reach=EVERYWHERE)

    async def seen(engine):
        frames = []
        async for frame in camera.frames():
            found = engine.detect(frame.image.pixels, OPTIONS)
            frames.append((frame.pts_s, (frame.image.width, frame.image.height), found))
        return frames

    with Engine.open(repository / "yolox" / "1") as engine:
        return asyncio.run(seen(engine))


@pytest.mark.real
@pytest.mark.parametrize("tracker", ["bytetrack", "sort"])
def test_each_round_counts_the_same(clip, tracker):
    following, counts = Tracker(tracker), [0]
    tuning = Tuning.of(replace(OPTIONS, track=tracker))
    scene = Scene([Shape.parse("line", "road=0,0.5,1,0.5:anchor=center")], 2 * EVERY_S, 2.0)
    length_s = clip[-1][0] + EVERY_S
    for number in range(TIMES):
        for time_s, size, found in clip:
            tracked = following.identify(found, None, tuning)
            scene.see(tracked, None, size, number * length_s + time_s)
        counts.append(sum(scene.counts["road"].values()))
    rounds = [after - before for before, after in pairwise(counts)]
    assert min(rounds) > 1
    assert max(rounds) - min(rounds) <= 1
