"""Time that the ids of 50 objects take a frame, and how much of it Fovea adds.

    python benchmarks/track.py [--rounds 5] [--json FILE]

The objects move through each other. Each frame is also given to the tracker by hand, in turn: the
rest is what Fovea adds, and that is to stay under half a millisecond.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from supervision import Detections as Given

from fovea_engines.device import processor_name
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_server.tracking.tracker import Tracker, Tuning

LIMIT_MS, OBJECTS, FRAMES = 0.5, 50, 300


def scene() -> list[Detections]:
    """Frames of objects that go straight ahead."""
    random = np.random.default_rng(0)
    place, speed = random.uniform(0, 1800, (OBJECTS, 2)), random.uniform(-3, 3, (OBJECTS, 2))
    scores = random.uniform(0.5, 1, OBJECTS).astype(np.float32)
    corners = (place + n * speed for n in range(FRAMES))
    boxes = (np.hstack([each, each + 60]).astype(np.float32) for each in corners)
    return [Detections(each, scores, np.zeros(OBJECTS, np.int32)) for each in boxes]


def measured(name: str, frames: list[Detections]) -> tuple[float, float]:
    """Milliseconds a frame, medians: of Fovea's tracker, and of the same by hand."""
    ours, by_hand = Tracker(name), Tracker(name)._tracker
    tuning = Tuning.of(PredictOptions(track=name))
    by_hand.high_conf_det_threshold = tuning.high
    by_hand.track_activation_threshold = tuning.new
    by_hand.minimum_consecutive_frames = tuning.min_frames
    times: list[tuple[float, float]] = []
    for found in frames:
        began = time.thread_time()
        ours.identify(found, None, tuning)
        between = time.thread_time()
        by_hand.update(Given(found.boxes, confidence=found.scores))
        times.append((between - began, time.thread_time() - between))
    own, other = zip(*times, strict=True)
    return 1e3 * statistics.median(own), 1e3 * statistics.median(other)


def main() -> None:
    """Print the figures of each tracker."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    frames, figures = scene(), {}
    for name in ("bytetrack", "sort", "ocsort", "botsort"):
        rounds = [measured(name, frames) for _ in range(given.rounds)]
        added = statistics.median(own - by_hand for own, by_hand in rounds)
        figures[name] = {
            "ms": round(statistics.median(own for own, _ in rounds), 3),
            "added_ms": round(added, 3),
            "added_of_the_limit": round(added / LIMIT_MS, 2),
            "to_by_hand": round(statistics.median(own / by_hand for own, by_hand in rounds), 3),
        }
    for name, row in figures.items():
        print(
            f"{name:10} {row['ms']:6.3f} ms a frame of {OBJECTS} objects; Fovea adds "
            f"{row['added_ms']:.3f} ms, x{row['added_of_the_limit']:.2f} of the limit"
        )
    if given.json:
        about = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{processor_name()}, {platform.machine()}",
            "rounds": given.rounds,
        }
        given.json.write_text(json.dumps({**about, "trackers": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
