"""Measures what tiles cost, and what they find.

    python benchmarks/tiles.py [MODEL.onnx] [--tile 2x2] [--overlap .2] [--rounds 5] [--json FILE]

The images are 1920 x 960 pixels, of six photographs of coco64 each. Cost: the time of a request
with tiles to `fovea serve`, as a ratio to a bare loop that decodes the image, cuts it, runs the
same tiles and joins them, without a server. The loop runs one tile after the other on all cores,
and a tile a core; the faster counts. They are timed in turn. Found: labelled objects that a box of
their class and IoU of .5 or more covers, with tiles, with what SAHI keeps of the boxes on the same
tiles (of two that share half of the smaller the surer, also where a tile cuts it), and without.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import cv2
import httpx
import numpy as np
from numpy.typing import NDArray
from serve import COCO, MODEL, start_server

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name, usable_cores
from fovea_engines.engine import Engine
from fovea_engines.evaluation.agreement.overlap import iou
from fovea_engines.evaluation.dataset import read_dataset
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.repository import ModelRepository
from fovea_engines.results import nms
from fovea_engines.results.detections import Detections, join
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.tiles import MAX_SHARED, Tile, crop, cut, join_tiles
from fovea_preprocess.image import decode_image
from fovea_preprocess.letterbox import LetterboxMap

ACROSS, DOWN, WIDTH, HEIGHT = 3, 2, 640, 480

Found = list[tuple[Tile, Detections]]


def mosaics(engine: Engine) -> list[tuple[bytes, NDArray[np.float32], NDArray[np.int32]]]:
    """Return images as JPEG files, each with boxes [n, 4] and class ids [n] of its objects."""
    dataset = read_dataset(COCO / "val.json", COCO / "val").match_classes(engine.labels)
    each = ACROSS * DOWN
    made = []
    for first in range(0, len(dataset.images) - each + 1, each):
        canvas = np.empty((DOWN * HEIGHT, ACROSS * WIDTH, 3), np.uint8)
        boxes, classes = [], []
        for place, image in enumerate(dataset.images[first : first + each]):
            top, left = place // ACROSS * HEIGHT, place % ACROSS * WIDTH
            part = cv2.resize(image.pixels(), (WIDTH, HEIGHT))
            canvas[top : top + HEIGHT, left : left + WIDTH] = part
            scale = [WIDTH / image.width, HEIGHT / image.height] * 2
            boxes.append(image.boxes * scale + [left, top, left, top])
            classes.append(image.class_ids)
        _, file = cv2.imencode(".jpg", canvas[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])
        made.append((file.tobytes(), np.concatenate(boxes), np.concatenate(classes)))
    return made


def on_tiles(engine: Engine, image: bytes, options: PredictOptions, callers: int) -> Found:
    """Run the tiles of an image, so many at a time."""
    pixels = decode_image(image).pixels
    one = replace(options, tile=None, overlap=PredictOptions().overlap)
    preprocessor, head = engine.preprocessor, engine.head
    assert preprocessor is not None
    assert head is not None

    def run(tile: Tile) -> tuple[Tile, Detections]:
        batch = np.empty((1, *preprocessor.spec.row_shape), preprocessor.spec.dtype)
        back = preprocessor(np.ascontiguousarray(crop(pixels, tile)), batch[0])
        outputs = engine.session.infer(engine.feeds(batch), alone=callers == 1)
        found = head.decode(outputs, 0, one)
        assert isinstance(found, Detections), "the model is a detector"
        return tile, found.to_source(back)

    parts = cut(options, (pixels.shape[0], pixels.shape[1]))
    if callers == 1:
        return [run(tile) for tile in parts]
    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(run, parts))


def by_sahi(found: Found, size: tuple[int, int]) -> Detections:
    """Keep of boxes on tiles what SAHI keeps."""
    height, width = size
    whole = join(
        [
            part.to_source(
                LetterboxMap(
                    width, height, tile.width, tile.height, width, height, -tile.left, -tile.top
                )
            )
            for tile, part in found
        ]
    )
    whole = whole.take(np.argsort(-whole.scores, kind="stable"))
    table = nms.add_groups(whole.boxes, whole.class_ids)

    def overlaps(better: NDArray[np.intp], worse: NDArray[np.intp]) -> NDArray[np.bool_]:
        return nms.find_overlaps(table[:, better], table[:, worse], MAX_SHARED, over_smaller=True)

    return whole.take(nms.suppress_greedily(len(whole), len(whole), overlaps))


def hits(found: Detections, boxes: NDArray[np.float32], classes: NDArray[np.int32]) -> int:
    """Count the labelled objects that are found; a box is of one object."""
    shared = iou(found.boxes, boxes.astype(np.float32))
    shared[found.class_ids[:, None] != classes] = 0
    count = 0
    for row in shared:
        if row.size and row[best := int(row.argmax())] >= 0.5:
            count += 1
            shared[:, best] = 0
    return count


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cost(
    engine: Engine, repository: Path, images: list[bytes], options: PredictOptions, rounds: int
) -> dict[str, object]:
    """Time requests and the bare loop in turn."""
    server, port, _ = start_server(repository, images[0])
    url = f"http://127.0.0.1:{port}/v1/models/{MODEL}/predict"
    query = {"tile": options.tile or "", "overlap": options.overlap}
    callers = {"one tile at a time": 1, "a tile a core": usable_cores()}
    bare: dict[str, list[float]] = {name: [] for name in callers}
    served: list[float] = []

    def loop(number: int) -> None:
        for image in images:
            found = on_tiles(engine, image, options, number)
            join_tiles(found, (DOWN * HEIGHT, ACROSS * WIDTH), options)

    def request(client: httpx.Client) -> None:
        for image in images:
            client.post(url, content=image, params=query).raise_for_status()

    try:
        with httpx.Client(timeout=60) as client:
            request(client)
            for _ in range(rounds):
                for name, number in callers.items():
                    bare[name].append(seconds(lambda number=number: loop(number)))
                served.append(seconds(lambda: request(client)))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    ratios = [time / min(both) for time, *both in zip(served, *bare.values(), strict=True)]
    per_image = 1e3 / len(images)
    return {
        "served_ms": round(statistics.median(served) * per_image, 1),
        "bare_ms": {name: round(statistics.median(v) * per_image, 1) for name, v in bare.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(each, 3) for each in ratios],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = COCO.parents[1] / "models" / "yolox_nano.onnx"
    parser.add_argument("model", type=Path, nargs="?", default=default)
    parser.add_argument("--tile", default="2x2")
    parser.add_argument("--overlap", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    options, plain = PredictOptions(tile=given.tile, overlap=given.overlap), PredictOptions()
    truth = json.loads((COCO / "val.json").read_text())["categories"]
    labels = tuple(each["name"] for each in sorted(truth, key=lambda each: each["id"]))
    found = {"tiles": [0, 0], "SAHI's rule": [0, 0], "no tiles": [0, 0]}
    objects = 0
    with tempfile.TemporaryDirectory() as folder:
        plan = BuildPlan(given.model, MODEL, Path(folder), labels=labels)
        build(plan, ConsoleProgress())
        with Engine.open(ModelRepository(plan.repository).folder(MODEL)) as engine:
            images = mosaics(engine)
            for image, boxes, classes in images:
                parts = on_tiles(engine, image, options, 1)
                size = (DOWN * HEIGHT, ACROSS * WIDTH)
                answers = {
                    "tiles": join_tiles(parts, size, options),
                    "SAHI's rule": by_sahi(parts, size),
                    "no tiles": engine.detect(decode_image(image).pixels, plain),
                }
                objects += len(boxes)
                for name, answer in answers.items():
                    found[name][0] += hits(answer, boxes, classes)
                    found[name][1] += len(answer)
            files = [image for image, *_ in images]
            times = cost(engine, plan.repository, files, options, given.rounds)
    report = {
        "model": given.model.name,
        "tile": given.tile,
        "overlap": given.overlap,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {usable_cores()} cores",
        "objects": objects,
        "found": {n: {"objects": hit, "boxes": boxes} for n, (hit, boxes) in found.items()},
        "cost": times,
    }
    print(f"\n{given.model.name}, tile={given.tile}; {report['machine']}; {report['date']}")
    for name, (hit, boxes) in found.items():
        print(f"{name:12} {hit:4} of {objects} objects, {boxes} boxes")
    print(f"ms an image: {times['served_ms']} served, {times['bare_ms']} in the bare loop")
    print(f"ratio of times: {times['ratio']} {times['ratios']}")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
