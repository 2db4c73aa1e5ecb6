"""Distances of live images from those of a build, and their cost on the path of a request.

    python benchmarks/drift.py [--shared ../shared] [--seeds 20] [--json FILE]

Two models: the demo's detector on scenes of digits, of which the live ones are others than those of
the build; and, where the folder of real models is there, yolox_nano on the 128 images of coco64, of
which the live ones are drawn. Live are: others of the same kind; these, darker; their middle third,
or of digits their middle half; images of other classes. Each seed draws 500 images, and the
largest distance of any quantity of the same kind, and the one of the quantity that should see it of
the others, are what counts: cropped scenes have fewer objects, and larger ones.

The cost is CPU time: of `Drift.observe` on the event loop, by a real answer; beside it, in
threads, of a look at the brightness, four times a second at most, and of computing the distances.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import cv2
import numpy as np
from numpy.typing import NDArray
from tools.demo_models import scenes
from tools.demo_models.heldout import FIRST_SEED, LAYOUTS

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.repository.card import Baseline, Found, select_values
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.image import DecodedImage, brightness
from fovea_server.app import build_app
from fovea_server.dataplane.prediction import PredictRequest
from fovea_server.monitoring.drift import Drift, LiveWindow
from fovea_server.settings import Settings

Pixels = NDArray[np.uint8]
Change = Callable[[Pixels], Pixels]

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "server" / "fovea_server" / "demo"
IMAGES = 500
SEEN_BY = {"darker": "brightness", "cropped": "objects", "other classes": "classes"}
_PERSON, _FEW = 0, (1, 4, 7)
# Scenes that the seeds draw from.
_LIVE = 700
_ROUNDS = 20_000


class Look(NamedTuple):
    """An image as it is compared."""

    found: Found
    brightness: float


def looked(
    engine: Engine, images: Iterable[Pixels], change: Change = lambda one: one
) -> list[Look]:
    """Find what is on images that are changed before."""
    looks = []
    for image in images:
        pixels = np.ascontiguousarray(change(image))
        found = select_values(engine.predict(pixels), pixels.shape[0] * pixels.shape[1])
        assert found is not None, "it finds objects"
        looks.append(Look(found, brightness(DecodedImage(pixels, 1))))
    return looks


def darker(pixels: Pixels) -> Pixels:
    """Return an image with two fifths of the light."""
    return (pixels * 0.4).astype(np.uint8)


def middle(share: float) -> Change:
    """Return a crop around the centre, with this share of the sides."""

    def crop(pixels: Pixels) -> Pixels:
        height, width, _ = pixels.shape
        top, left = (round(side * (1 - share) / 2) for side in (height, width))
        return pixels[top : height - top, left : width - left]

    return crop


def distances(baseline: Baseline, looks: Sequence[Look]) -> dict[str, float]:
    """Return the distance of each quantity."""
    live = baseline.count([one.found for one in looks], [one.brightness for one in looks])
    return {name: each.distance(live[name]) or 0.0 for name, each in baseline.quantities.items()}


def table(engine: Engine, pools: dict[str, list[Look]], seeds: int) -> dict[str, Any]:
    """Return, for each kind of live images, the least and the largest distances of all seeds."""
    baseline = engine.card.baseline
    assert baseline is not None, "the build had images"
    made: dict[str, Any] = {}
    for kind, pool in pools.items():
        each = []
        for seed in range(seeds):
            chance = np.random.default_rng(seed)
            places = chance.choice(len(pool), IMAGES, replace=len(pool) < IMAGES)
            each.append(distances(baseline, [pool[i] for i in places.tolist()]))
        made[kind] = {
            name: [round(f(one[name] for one in each), 3) for f in (min, max)]
            for name in baseline.quantities
        }
    return made


def composed(first: int, count: int) -> list[Pixels]:
    """Compose scenes of digits that the detector was not trained with."""
    return [
        scenes.compose(first + number, "heldout", LAYOUTS[number % len(LAYOUTS)]).pixels
        for number in range(count)
    ]


def digits(folder: Path, seeds: int, built: int) -> dict[str, Any]:
    """Measure the demo's detector, whose live scenes are others than those of the build."""
    images = folder / "scenes"
    images.mkdir()
    for number, pixels in enumerate(composed(FIRST_SEED, built)):
        cv2.imwrite(str(images / f"{number}.png"), pixels[..., ::-1])
    build(BuildPlan(DEMO / "digits.onnx", "digits", folder, "onnxruntime", images=images))
    live = composed(FIRST_SEED + 10_000, _LIVE)
    few = [glyph for glyph in scenes.glyphs("heldout") if glyph.label in _FEW]
    with patch.object(scenes, "glyphs", lambda split: few):
        others = composed(FIRST_SEED + 20_000, _LIVE)
    with Engine.open(folder / "digits" / "1") as engine:
        pools = {
            "the same": looked(engine, live),
            "darker": looked(engine, live, darker),
            "cropped": looked(engine, live, middle(1 / 2)),
            "other classes": looked(engine, others),
        }
        return table(engine, pools, seeds)


def coco(folder: Path, shared: Path, seeds: int) -> dict[str, Any]:
    """Measure yolox_nano, whose live images are drawn from those of the build."""
    files = sorted((shared / "data" / "coco64").glob("*/*.jpg"))
    images = folder / "coco64"
    images.mkdir()
    for file in files:
        (images / file.name).symlink_to(file.resolve())
    model = shared / "models" / "yolox_nano.onnx"
    build(BuildPlan(model, "nano", folder, "onnxruntime", images=images))
    pixels = [read_image(file) for file in files]
    with Engine.open(folder / "nano" / "1") as engine:
        same = looked(engine, pixels)
        pools = {
            "the same": same,
            "darker": looked(engine, pixels, darker),
            "cropped": looked(engine, pixels, middle(1 / 3)),
            "other classes": [one for one in same if _PERSON not in one.found[1]],
        }
        return table(engine, pools, seeds)


async def cost(folder: Path) -> dict[str, float]:
    """Time what an answer adds to the event loop, and what threads do beside it."""
    settings = Settings(model_repository=folder)
    app = build_app(settings)
    app.registry.start()
    while not app.registry.started:
        await asyncio.sleep(0.05)
    [watch] = [feature for feature in app.features if isinstance(feature, Drift)]
    model = app.service.models.get("digits", None)
    image = (DEMO / "scene-1.jpg").read_bytes()
    answer = await app.service.plane.predict(PredictRequest(model, None, [image], PredictOptions()))
    means = []
    for _ in range(7):
        began = time.thread_time()
        for _ in range(_ROUNDS):
            watch.observe(model, [image], answer)
        means.append((time.thread_time() - began) / _ROUNDS)
        await asyncio.sleep(0.3)
    _, window = watch.window("digits")
    figures = {"observe_us": 1e6 * statistics.median(means)}
    figures["count_ms"] = 1e3 * timed(window.count)
    big = cv2.imencode(".jpg", cv2.resize(read_image(DEMO / "scene-1.jpg"), (1920, 1080)))[1]
    figures["look_1080p_jpeg_ms"] = 1e3 * timed(lambda: LiveWindow.look(window, big.tobytes()))
    app.service.models.stop()
    app.close()
    return {name: round(value, 3) for name, value in figures.items()}


def timed(work: Callable[[], object]) -> float:
    """Return the median CPU time of a call, seconds."""
    seconds = []
    for _ in range(20):
        began = time.thread_time()
        work()
        seconds.append(time.thread_time() - began)
    return statistics.median(seconds)


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--built", type=int, default=256, help="images of the build, of digits")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor_name(),
        "python": platform.python_version(),
        "images": IMAGES,
        "seeds": options.seeds,
        "built": options.built,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found["digits"] = digits(folder, options.seeds, options.built)
        found["cost"] = asyncio.run(cost(folder))
        if options.shared.is_dir():
            found["coco64"] = coco(folder, options.shared, options.seeds)
    for model in ("digits", "coco64"):
        for kind, of in found.get(model, {}).items():
            seen = SEEN_BY.get(kind)
            least, most = of[seen] if seen else (0, max(high for _, high in of.values()))
            says = f"{seen} {least:.2f} to {most:.2f}" if seen else f"at most {most:.2f}"
            print(f"{model:8} {kind:14} {says}")
    print(found["cost"])
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
