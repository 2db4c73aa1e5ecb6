"""Images/s of `fovea predict --out` as a ratio to the bare loop of the same engine, in turn.

    python benchmarks/predict.py MODEL.onnx [--format coco] [--rounds 5] [--images 1000]

A run predicts a folder of links to images of COCO, from the first image to the last byte that is
written. Its rate is divided by the mean of the bare loops (`benchmarks/serve.py`, a caller a core)
right before and right after it, so that a noisy machine cancels out. Starting Python and opening
the engine are not measured: they are the same for one image and for a million.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path

from serve import COCO, MODEL, bare_loop

from fovea_engines.build.build import build
from fovea_engines.build.plan import AUTO, BuildPlan, choices
from fovea_engines.engine import Engine
from fovea_engines.progress import ConsoleProgress
from fovea_engines.results.options import PredictOptions
from fovea_server.offline.formats.registry import read_formats
from fovea_server.offline.journal import Journal, RunSettings
from fovea_server.offline.predictors import LocalPredictor
from fovea_server.offline.save import save
from fovea_server.offline.sources import find_sources


def folder_of(count: int, top: Path) -> Path:
    """Make a folder with so many links to the images, in turn."""
    top.mkdir()
    files = itertools.cycle(sorted((COCO / "val").glob("*.jpg")))
    for number, file in zip(range(count), files, strict=False):
        (top / f"{number:06}.jpg").symlink_to(file)
    return top


def run(predictor: LocalPredictor, images: Path, formats: tuple[str, ...], out: Path) -> float:
    """Images/s of one run."""
    started = time.perf_counter()
    sources = find_sources([str(images)]).files
    model = predictor.describe()
    settings = RunSettings(model.name, model.version, model.task, {}, 1, formats, None)
    with Journal(out, settings, model.vocabulary, resume=False) as journal:
        counts = save(predictor, model, sources, formats, None, out, journal, lambda *_: None)
    assert counts.images == len(sources)
    assert not counts.failed
    return counts.images / (time.perf_counter() - started)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--format", default="coco")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a bare loop")
    parser.add_argument("--json", type=Path, help="write the figures there")
    chosen = parser.parse_args()
    files = [p.read_bytes() for p in sorted((COCO / "val").glob("*.jpg"))]
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        images = folder_of(chosen.images, top / "images")
        plan = BuildPlan(chosen.model, MODEL, top / "repository", choices=choices(AUTO, "fp32"))
        build(plan, ConsoleProgress())
        version = top / "repository" / MODEL / "1"
        formats = read_formats([chosen.format])
        with (
            Engine.open(version) as engine,
            LocalPredictor(version, PredictOptions(), alone=False) as predictor,
        ):
            callers = engine.session.concurrency
            bare_loop(engine, files, callers, 2)
            before = bare_loop(engine, files, callers, chosen.seconds)
            for number in range(chosen.rounds):
                rate = run(predictor, images, formats, top / f"out-{number}")
                after = bare_loop(engine, files, callers, chosen.seconds)
                limit = (before + after) / 2
                rounds.append({"predict": rate, "bare": limit, "ratio": rate / limit})
                print(f"{rate:.1f} of {limit:.1f} images/s: {rate / limit:.3f}", flush=True)
                before = after
    median = statistics.median(each["ratio"] for each in rounds)
    print(f"median ratio {median:.3f}")
    if chosen.json:
        report = {"model": chosen.model.name, "format": chosen.format, "ratio": median}
        chosen.json.write_text(json.dumps(report | {"rounds": rounds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
