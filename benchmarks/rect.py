"""Images/s over HTTP and accuracy of an engine of several sizes (`fovea build --rect`), and of one.

    python benchmarks/rect.py [MODEL.onnx ...] [--precision fp32] [--rounds 5] [--json FILE]

One server has both engines. Two clients ask them in turn for the same pictures; a ratio is taken
within each round. `4:3` are images of coco64 of that shape, `16:9` frames of videos, and `mixed`
images of coco64 of all shapes. The limits are 1.2 for 4:3 and 1.4 for 16:9. `cpu_ratio` is that of
the processor time of an answer, which tells more where others use the cores, too. mAP50-95 on
coco64 is that of the cards; of several sizes it may be .003 less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache, partial
from operator import truediv
from pathlib import Path
from typing import get_args

import cv2
import httpx

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name, usable_cores
from fovea_engines.evaluation.samples import image_files
from fovea_engines.evaluation.speed import call_rate
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.card import EngineCard, Precision
from fovea_server.bench.server_process import ServerProcess

LIMITS = {"4:3": 1.2, "16:9": 1.4}
LARGEST_DROP = 0.003  # of mAP50-95
WARM_UP = 4  # pictures of each size; the first round warms up the rest
MOST = 16  # pictures of a shape
BACKEND = "onnxruntime"
WAYS = ("square", "rect")
SHARED = Path(__file__).resolve().parents[2] / "shared"
COCO = SHARED / "data" / "coco64"
VIDEOS = ("car-detection.mp4", "one-by-one-person-detection.mp4")
NAMES = ("yolov8n", "yolov5n", "yolox_nano", "yolov8n-seg-320", "yolov8n-pose")
MODELS = [SHARED / "models" / f"{name}.onnx" for name in NAMES]
Row = dict[str, str | float | None]


@cache
def files_of(shape: str) -> tuple[list[bytes], int]:
    """JPEG files of a shape, and how many sizes they have."""
    if shape == "16:9":
        return list(frames()), 1
    paths = image_files(COCO / "val", 64)
    sizes = [cv2.imread(str(path)).shape[1::-1] for path in paths]
    if shape == "mixed":
        chosen = paths[:MOST]
        return [path.read_bytes() for path in chosen], len(set(sizes[:MOST]))
    fitting = [p for p, (w, h) in zip(paths, sizes, strict=True) if 1.32 < w / h < 1.35]
    return [path.read_bytes() for path in fitting[:MOST]], 1


def frames() -> Iterator[bytes]:
    """Frames of videos of 768 x 432 pixels, as JPEG."""
    for name in VIDEOS:
        video = cv2.VideoCapture(str(SHARED / "data" / "video" / name))
        count = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
        for number in range(count // MOST, count, 2 * count // MOST):
            video.set(cv2.CAP_PROP_POS_FRAMES, number)
            read, frame = video.read()
            assert read, name
            yield cv2.imencode(".jpg", frame)[1].tobytes()


def accuracy(model: str, card: EngineCard) -> Row:
    """The accuracy on coco64 of a card of several sizes, and of the largest alone."""
    several = card.accuracy[card.precision]
    square = card.accuracy[f"{card.precision} at one size"]
    return {
        "model": model,
        "metric": several.metric,
        "square": round(square.figure, 4),
        "rect": round(several.figure, 4),
        "lost": round(square.figure - several.figure, 4),
        "limit": LARGEST_DROP,
    }


def labels(model: Path, folder: Path) -> Path:
    """The labels of coco64 for a model: with masks, or persons alone for one of their poses."""
    if "-seg" in model.stem:
        return COCO / "labels-seg"
    if "-pose" not in model.stem:
        return COCO / "val.json"
    document = json.loads((COCO / "val.json").read_text())
    [person] = [each for each in document["categories"] if each["name"] == "person"]
    found = [each for each in document["annotations"] if each["category_id"] == person["id"]]
    file = folder / "persons.json"
    file.write_text(json.dumps(document | {"categories": [person], "annotations": found}))
    return file


def measure(server: ServerProcess, model: str, rounds: int, seconds: float) -> list[Row]:
    """A row for each shape of pictures."""
    rows: list[Row] = []
    with httpx.Client(base_url=server.url, timeout=60) as client:

        def ask(number: int, way: str, files: list[bytes]) -> None:
            path = f"/v1/models/{model}-{way}/predict"
            client.post(path, content=files[number % len(files)]).raise_for_status()

        for shape in (*LIMITS, "mixed"):
            files, sizes = files_of(shape)
            rates: dict[str, list[float]] = {way: [] for way in WAYS}
            cpu: dict[str, list[float]] = {way: [] for way in WAYS}
            for number in range(WARM_UP * sizes):
                for way in WAYS:
                    ask(number, way, files)
            for each in range(rounds + 1):
                for way in WAYS:
                    before, began = server.cpu_s, time.perf_counter()
                    rate = call_rate(
                        partial(ask, way=way, files=files),
                        callers=usable_cores(),
                        seconds=seconds,
                    )
                    if each:  # the first is a warm-up
                        rates[way].append(rate)
                        answers = rate * (time.perf_counter() - began)
                        cpu[way].append((server.cpu_s - before) / answers)
            ratios = [a / b for a, b in zip(rates["rect"], rates["square"], strict=True)]
            rows.append(
                {
                    "model": model,
                    "pictures": shape,
                    **{f"{way}_per_s": round(statistics.median(rates[way]), 2) for way in WAYS},
                    "ratio": round(statistics.median(ratios), 3),
                    "lowest": round(min(ratios), 3),
                    "highest": round(max(ratios), 3),
                    "cpu_ratio": round(
                        statistics.median(map(truediv, cpu["square"], cpu["rect"])), 3
                    ),
                    "limit": LIMITS.get(shape),
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Build both engines of each model, serve them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path, default=MODELS)
    parser.add_argument("--precision", choices=get_args(Precision), default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, judged = [], []
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        for model in options.models:
            for way in WAYS:
                name = f"{model.stem}-{way}"
                plan = BuildPlan(
                    model,
                    name,
                    repository,
                    BACKEND,
                    rect=way == "rect",
                    precision=options.precision,
                    calibration=COCO / "calibration" if options.precision == "int8" else None,
                    images=COCO / "val",
                    data=labels(model, repository) if way == "rect" else None,
                    # What is lost is measured here, not judged.
                    max_drop=1.0,
                )
                card = build(plan, ConsoleProgress())
            judged.append(accuracy(model.stem, card))
            print(judged[-1], flush=True)
            more = [f"--load-model={model.stem}-rect"]
            with ServerProcess(repository, f"{model.stem}-square", more) as server:
                rows += measure(server, model.stem, options.rounds, options.seconds)
            document = {
                "date": datetime.now(UTC).date().isoformat(),
                "machine": f"{processor_name()}, {usable_cores()} cores",
                "backend": BACKEND,
                "precision": options.precision,
                "accuracy": judged,
                "rows": rows,
            }
            if options.json is not None:
                options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
