"""Measures how long each head takes to decode an image, on real files of every family.

    python benchmarks/heads.py [FOLDER] [--head FAMILY] [--rounds 200] [--json FILE]

Each ONNX file of the folder is recognised as in a build, unless a head is named, and run once by
ONNX Runtime on bus.jpg; its head then decodes that output again and again, at the threshold of a
request. Printed are milliseconds of CPU in one thread, the median over the rounds, and the least.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.evaluation.reference import ReferenceSession
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.recognise import open_head
from fovea_engines.progress import Progress
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import FoveaError
from fovea_preprocess.preprocessor import Preprocessor

SHARED = Path(__file__).resolve().parents[2] / "shared"
SIZE = (640, 640)


@dataclass(frozen=True)
class Case:
    """The figures of one file."""

    file: str
    family: str
    boxes: int
    median_ms: float
    least_ms: float


def measure(path: Path, rounds: int, family: str | None) -> Case | str:
    """Decode one output of a file, or return why it is not decoded."""
    for size in (None, SIZE, (320, 320)):
        try:
            plan = BuildPlan(path, "bench", Path(), size=size, family=family)
            prepared = prepare(plan, Progress())
            break
        except FoveaError as error:
            reason = str(error)
    else:
        return reason
    head = open_head(prepared.head, prepared.inputs)
    if head is None:
        return prepared.head.reason
    row = np.empty((1, *prepared.preprocess.row_shape), prepared.preprocess.dtype)
    Preprocessor(prepared.preprocess)(read_image(SHARED / "data" / "bus.jpg"), row[0])
    names = [output.name for output in prepared.outputs]
    found = ReferenceSession(prepared.graph).run(names, row)
    outputs, options = dict(zip(names, found, strict=True)), PredictOptions()
    spent = []
    for _ in range(rounds):
        began = time.thread_time()
        boxes = head.decode(outputs, 0, options)
        spent.append(1e3 * (time.thread_time() - began))
    return Case(
        path.stem,
        head.family,
        len(boxes),
        round(statistics.median(spent), 3),
        round(min(spent), 3),
    )


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=SHARED / "models" / "heads")
    parser.add_argument("--head")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    cases = []
    for path in sorted(given.folder.glob("*.onnx")):
        case = measure(path, given.rounds, given.head)
        if isinstance(case, str):
            print(f"{path.stem:<28}{case[:90]}")
            continue
        cases.append(case)
        figures = f"{case.boxes:>4} boxes {case.median_ms:8.3f} ms {case.least_ms:8.3f} ms"
        print(f"{path.stem:<28}{case.family:<24}{figures}")
    if given.json:
        given.json.write_text(json.dumps([asdict(case) for case in cases], indent=1) + "\n")


if __name__ == "__main__":
    main()
