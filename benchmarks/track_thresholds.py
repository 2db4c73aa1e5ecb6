"""Measure how right ids are with the default thresholds of trackers, and with others.

    make .venv/vision
    python benchmarks/track_thresholds.py [--json FILE]

The thresholds are shares of the way from `conf` to 1: boxes from `high` on are matched first, and
one from `new` on begins a track; an object has its id behind `frames` frames. "package" has the
fixed ones of the package `trackers`, whatever `conf` is. Three sources speak for different things:

- "digits": 20 drawn videos, in which the demo's detector finds digits, with scores of its own. It
  is sure of whole digits (.9), and takes parts of the photographs behind them for others (.3 to
  .7).
- "pedestrians": detections of TUD-Campus and TUD-Stadtmitte, which come with motmetrics, and have
  no scores: these are drawn from a half to the whole of 1, .6 or .45, as of detectors that are
  less and less sure. It lacks many objects, and has few that are none.
- "cars": real detections of two networks in a clip in which 4 cars cross a line, at 12 and 5 frames
  a second. Only the count is known: how far it is off, of the four runs together.

IDF1 and MOTA are those of the package `trackers`, in percent.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import av
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.server.tracking.digits import LENGTH, DigitScene  # noqa: E402
from tests.server.tracking.mot import COUNTS, OF_NO_MATTER, figures, row, rows_of  # noqa: E402

from fovea_engines.build.build import build  # noqa: E402
from fovea_engines.build.plan import BuildPlan  # noqa: E402
from fovea_engines.engine import Engine  # noqa: E402
from fovea_engines.results.detections import Detections  # noqa: E402
from fovea_engines.results.options import PredictOptions  # noqa: E402
from fovea_server.streams.frames.reader import FrameSampler  # noqa: E402
from fovea_server.streams.scene import Scene  # noqa: E402
from fovea_server.streams.zones import Shape  # noqa: E402
from fovea_server.tracking.tracker import Tracker, Tuning  # noqa: E402

SHARED = ROOT.parent / "shared"
SCENES = Path(sys.prefix) / "vision" / "site-packages" / "motmetrics" / "data"
DEMO = ROOT / "server" / "fovea_server" / "demo" / "digits.onnx"
TRACKERS = ("bytetrack", "sort", "ocsort", "botsort")
SEEDS, CARS, RATES = range(20), 4, (12, 5)
# The detector may miss a digit that is less visible than this.
WHOLE = 0.75
SHARES = (1.0, 0.6, 0.45)
LINE = Shape.parse("line", "middle=0,0.5,1,0.5")


@dataclass(frozen=True)
class Thresholds:
    """Thresholds to try: shares, or else by their name those of Fovea or of the package."""

    name: str
    shares: tuple[float, float, int] | None = None

    def tuning(self, tracker: str, conf: float) -> Tuning:
        """Return them for a tracker, at a `conf`."""
        if self.name == "default":
            return Tuning.of(PredictOptions(conf=conf, track=tracker))
        if self.shares is None:
            return Tuning(0.6, 0.7, 2)
        high, new, frames = self.shares
        return Tuning(conf + high * (1 - conf), conf + new * (1 - conf), frames)


TRIED = (
    Thresholds("default"),
    Thresholds("package"),
    *(
        Thresholds(f"{high:.2f} {new:.2f} {frames}", (high, new, frames))
        for high, new in ((0.07, 0.13), (0.2, 0.3), (0.3, 0.4), (0.2, 0.6))
        for frames in (1, 2)
    ),
)

Scenes = Mapping[str, tuple[list[str], list[Detections]]]
"""By name: the lines of the truth, and what is found on each frame."""
Clips = dict[str, list[tuple[float, Detections]]]
"""By network: the time of each frame of the clip, and what is found on it."""


def surer(found: Detections, conf: float) -> Detections:
    """Return the objects of a score of `conf` and more."""
    kept = found.scores >= conf
    return Detections(found.boxes[kept], found.scores[kept], found.class_ids[kept])


def digits() -> Scenes:
    """Find the digits of the drawn videos."""
    scenes = {}
    with tempfile.TemporaryDirectory() as folder:
        build(BuildPlan(DEMO, "digits", Path(folder), "onnxruntime"))
        with Engine.open(Path(folder) / "digits" / "1") as engine:
            for seed in SEEDS:
                scene, truth, found = DigitScene(seed), [], []
                for frame in range(LENGTH):
                    pixels, shares = scene.frame(frame)
                    found.append(engine.detect(pixels, PredictOptions(conf=0.25)))
                    for number, share in enumerate(shares):
                        kind = COUNTS if share >= WHOLE else OF_NO_MATTER
                        truth.append(row(frame, number, scene.digits[number].box(frame), kind))
                scenes[str(seed)] = truth, found
    return scenes


def pedestrians() -> Scenes:
    """Read the two scenes, with scores from .5 to 1."""
    scenes = {}
    for name in ("TUD-Campus", "TUD-Stadtmitte"):
        truth = [row(*line) for line in lines_of(SCENES / name / "gt.txt")]
        boxes = defaultdict(list)
        for frame, _, box in lines_of(SCENES / name / "test.txt"):
            boxes[frame].append(box)
        scenes[name] = truth, [scored(boxes[frame], frame) for frame in range(max(boxes) + 1)]
    return scenes


def lines_of(file: Path) -> Iterator[tuple[int, int, tuple[float, ...]]]:
    """Frame from 0, id and box of each line of a file of MOTChallenge."""
    for frame, number, *box in csv.reader(file.read_text().splitlines()):
        x, y, w, h = map(float, box[:4])
        yield int(frame) - 1, int(number), (x, y, x + w, y + h)


def scored(boxes: list[tuple[float, ...]], seed: int) -> Detections:
    """Return boxes with scores from .5 to 1, those of one class."""
    scores = np.random.default_rng(seed).uniform(0.5, 1, len(boxes)).astype(np.float32)
    corners = np.array(boxes, np.float32).reshape(-1, 4)
    return Detections(corners, scores, np.zeros(len(boxes), np.int32))


def cars() -> Clips:
    """Find what is in the clip with each network: time and objects of each frame."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in ("yolox_nano", "yolov8n"):
            source = SHARED / "models" / f"{model}.onnx"
            build(BuildPlan(source, model, Path(folder), "openvino"))
            clip = SHARED / "data" / "video" / "car-detection.mp4"
            with Engine.open(Path(folder) / model / "1") as engine, av.open(str(clip)) as container:
                found[model] = [
                    (
                        float(each.time),
                        engine.detect(each.to_ndarray(format="rgb24"), PredictOptions(conf=0.25)),
                    )
                    for each in container.decode(video=0)
                ]
    return found


def right(scenes: Scenes, tracker: str, thresholds: Thresholds, conf: float, share: float) -> Any:
    """Return IDF1 and MOTA of scenes whose scores are multiplied by a share."""
    truth = {name: lines for name, (lines, _) in scenes.items()}
    tuning, tracked = thresholds.tuning(tracker, conf), {}
    for name, (_, frames) in scenes.items():
        one = Tracker(tracker)
        scored = (replace(each, scores=each.scores * np.float32(share)) for each in frames)
        tracked[name] = rows_of([one.identify(surer(each, conf), None, tuning) for each in scored])
    if not all(tracked.values()):
        return 0.0, 0.0  # without any id
    with tempfile.TemporaryDirectory() as folder:
        found = figures(Path(folder) / "figures", truth, tracked)
    return found["IDF1"], found["MOTA"]


def off(clips: Clips, tracker: str, tried: Thresholds) -> int:
    """Return how far the counts of cars are off, of all networks and rates together."""
    wrong = 0
    for frames in clips.values():
        for rate in RATES:
            sampler, one = FrameSampler(1 / rate), Tracker(tracker)
            scene, tuning = Scene([LINE], 0.3, 2.0), tried.tuning(tracker, 0.25)
            for time_s, found in frames:
                if sampler.takes(time_s):
                    scene.see(one.identify(found, None, tuning), None, (768, 432), time_s)
            scene.end()
            wrong += abs(sum(scene.counts["middle"].values()) - CARS)
    return wrong


def main() -> None:
    """Print a table for each tracker."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    drawn, walking, driving = digits(), pedestrians(), cars()
    found: dict[str, dict[str, dict[str, float]]] = {}
    for tracker in TRACKERS:
        print(f"\n{tracker:16} digits .25   digits .5    pedestrians  mean         cars off")
        found[tracker] = {}
        for tried in TRIED:
            sources = {
                "digits .25": right(drawn, tracker, tried, 0.25, 1),
                "digits .5": right(drawn, tracker, tried, 0.5, 1),
            }
            # Lower the thresholds for a detector with lower scores.
            walks = [right(walking, tracker, tried, 0.5 * share, share) for share in SHARES]
            walks += [right(walking, tracker, tried, 0.25, share) for share in SHARES]
            sources["pedestrians"] = tuple(map(statistics.mean, zip(*walks, strict=True)))
            sources["mean"] = tuple(
                statistics.mean(each[which] for each in sources.values()) for which in (0, 1)
            )
            wrong = off(driving, tracker, tried)
            cells = "  ".join(f"{100 * i:5.1f} {100 * m:5.1f}" for i, m in sources.values())
            print(f"{tried.name:16} {cells}  {wrong}", flush=True)
            found[tracker][tried.name] = {
                **{f"IDF1 {name}": round(100 * each[0], 1) for name, each in sources.items()},
                **{f"MOTA {name}": round(100 * each[1], 1) for name, each in sources.items()},
                "cars off": wrong,
            }
    if given.json:
        date = datetime.now(UTC).date().isoformat()
        given.json.write_text(json.dumps({"date": date, "trackers": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
