"""Scenes of boxes that move, cross, turn and are hidden: exact ids and paths, without a picture;
and the events of such a scene. As a program it sends the events of a folder until it is killed:
walks.py FOLDER KEY ADDRESS.
"""

import asyncio
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from fovea_engines.results.detections import Detections
from fovea_server.streams.events import sender
from fovea_server.streams.events.config import EventConfig
from fovea_server.streams.events.feed import EventFeed
from fovea_server.tensors.messages import ImageResult

WIDTH, HEIGHT, FPS, LENGTH = 640, 360, 10, 240
BOX = 20, 40  # half of its width; its height
DOOR = "door=0.5,0,0.5,1"


@dataclass
class Walk:
    """An object: its feet in the frames from `first` on, [n, 2], and where it is not hidden."""

    track_id: int
    class_id: int
    first: int
    feet: np.ndarray
    seen: np.ndarray

    def at(self, frame):
        return frame - self.first if 0 <= frame - self.first < len(self.feet) else None


def walks(seed, hidden=3, objects=8):
    """Objects on ways of two to four straight legs; some are hidden for up to so many frames."""
    chance = np.random.default_rng(seed)
    return [_walk(chance, hidden, track_id) for track_id in range(1, objects + 1)]


def _walk(chance, hidden, track_id):
    corners = chance.uniform((0, BOX[1]), (WIDTH, HEIGHT), (chance.integers(3, 6), 2))
    pieces = []
    for a, b in pairwise(corners):
        steps = max(int(np.hypot(*(b - a)) / chance.uniform(4, 9)), 8)
        pieces.append(np.linspace(a, b, steps, endpoint=False))
    feet = np.concatenate([*pieces, corners[-1:]])[: LENGTH // 2]
    seen = np.ones(len(feet), bool)
    for start in chance.integers(0, len(feet), 3):
        seen[start : start + chance.integers(1, hidden + 1)] = False
    first = int(chance.integers(0, LENGTH // 2))
    return Walk(track_id, int(chance.integers(0, 2)), first, feet, seen)


def frame_of(scene, frame):
    """Make the objects that a model and a tracker would find in a frame."""
    here = [(walk, walk.at(frame)) for walk in scene]
    here = [(walk, at) for walk, at in here if at is not None and walk.seen[at]]
    half, height = BOX
    boxes = [(x - half, y - height, x + half, y) for x, y in (walk.feet[at] for walk, at in here)]
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.full(len(here), 0.9, np.float32),
        np.array([walk.class_id for walk, _ in here], np.int32),
        track_ids=np.array([walk.track_id for walk, _ in here], np.int32),
    )


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


async def send(folder, key, address):
    """Send what is in a folder, and what comes."""
    sender._FIRST_WAIT_S = sender._LONGEST_WAIT_S = 0.02
    feed_in(Path(folder), zones="yard=0,0,1,0,1,1", **{key: address})
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(send(*sys.argv[1:]))
