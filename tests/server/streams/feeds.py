"""Events of scenes of boxes."""

import asyncio

from tests.server.streams.walks import FPS, HEIGHT, LENGTH, WIDTH, frame_of, walks

from fovea_server.streams.events.config import EventConfig
from fovea_server.streams.events.feed import EventFeed
from fovea_server.tensors.messages import ImageResult

DOOR = "door=0.5,0,0.5,1"


def feed_in(folder, **given):
    feed = EventFeed("gate", EventConfig.parse({"lines": DOOR, **given}), folder)
    feed.start()
    feed.become(live=True)
    return feed


def play(feed, seed=1, pixels=None):
    scene = walks(seed)
    for frame in range(LENGTH):
        result = ImageResult(WIDTH, HEIGHT, 1, found=frame_of(scene, frame), pixels=pixels)
        feed.see({"frame": frame, "time_s": frame / FPS}, frame / FPS, result, ("person", "dog"))


def numbers(log):
    after, found = 0, []
    while events := log.read(after):
        after = events[-1].number
        found += [event.number for event in events]
    return found


async def until(there):
    """Wait for a condition on the loop."""
    async with asyncio.timeout(120):
        while not there():
            await asyncio.sleep(0.01)
