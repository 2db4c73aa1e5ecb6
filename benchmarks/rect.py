"""Images/s over HTTP of an engine of several sizes (`fovea build --rect`), over that of one size.

    python benchmarks/rect.py [MODEL.onnx ...] [--rounds 5] [--json FILE]

One server has both engines. Two clients ask them in turn for the same pictures; a ratio is taken
within each round. The limits are 1.2 for pictures of 4:3 and 1.4 for those of 16:9. `mixed` has
both in both directions, one after the other. `cpu_ratio` is that of the processor time of an
answer, which tells more where others use the cores, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from operator import truediv
from pathlib import Path

import cv2
import httpx
import numpy as np

from fovea_bench.server_process import ServerProcess
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name, usable_cores
from fovea_engines.evaluate.samples import sample_images
from fovea_engines.evaluate.speed import call_rate
from fovea_engines.progress import ConsoleProgress

SHAPES: dict[str, tuple[tuple[int, int], ...]] = {"4:3": ((640, 480),), "16:9": ((1280, 720),)}
SHAPES["mixed"] = tuple(
    side for sides in SHAPES.values() for w, h in sides for side in ((w, h), (h, w))
)
LIMITS = {"4:3": 1.2, "16:9": 1.4}
WARM_UP = 24  # pictures of each shape, in both layouts
BACKEND = "onnxruntime"
WAYS = ("square", "rect")
SHARED = Path(__file__).resolve().parents[2] / "shared" / "models"
MODELS = [SHARED / "yolov8n.onnx", SHARED / "yolox_nano.onnx"]
Row = dict[str, str | float | None]


def pictures(shapes: tuple[tuple[int, int], ...]) -> list[bytes]:
    """JPEG files of photographs, of these (width, height)."""
    photographs = [pixels for _, pixels in sample_images(None, 3)]
    files = []
    for number in range(2 * len(shapes)):
        resized = cv2.resize(photographs[number % 3], shapes[number % len(shapes)])
        files.append(cv2.imencode(".jpg", np.ascontiguousarray(resized[..., ::-1]))[1].tobytes())
    return files


def measure(server: ServerProcess, model: str, rounds: int, seconds: float) -> list[Row]:
    """A row for each shape of pictures."""
    rows: list[Row] = []
    with httpx.Client(base_url=server.url, timeout=60) as client:

        def ask(number: int, way: str, files: list[bytes]) -> None:
            path = f"/v1/models/{model}-{way}/predict"
            client.post(path, content=files[number % len(files)]).raise_for_status()

        for shape, sides in SHAPES.items():
            files = pictures(sides)
            rates: dict[str, list[float]] = {way: [] for way in WAYS}
            cpu: dict[str, list[float]] = {way: [] for way in WAYS}
            for number in range(WARM_UP * len(sides)):
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        for model in options.models:
            for way in WAYS:
                name = f"{model.stem}-{way}"
                plan = BuildPlan(model, name, repository, BACKEND, rect=way == "rect")
                build(plan, ConsoleProgress())
            more = [f"--load-model={model.stem}-rect"]
            with ServerProcess(repository, f"{model.stem}-square", more) as server:
                rows += measure(server, model.stem, options.rounds, options.seconds)
    document = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{processor_name()}, {usable_cores()} cores",
        "backend": BACKEND,
        "rows": rows,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
