"""A clip of a street that runs twenty times on end: what crosses a line is the same each time.

Its frames are decoded and detected once: in real time it would take ten minutes.
"""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.built import build

from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.results.options import PredictOptions
from fovea_server.dataplane.reach import EVERYWHERE
from fovea_server.streams.frames.address import SourceAddress
from fovea_server.streams.frames.camera import Camera
from fovea_server.streams.frames.reader import SourceSettings
from fovea_server.streams.scene import Scene
from fovea_server.streams.zones import Shape
from fovea_server.tracking.tracker import Tracker, Tuning

pytestmark = pytest.mark.real

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
