"""What INT8 gains in images a second and costs in accuracy on this CPU.

    python benchmarks/precision.py [MODEL ...] [--rounds 5] [--seconds 2] [--json FILE]

Each model is built in FP32 for every backend, in FP16, in bfloat16 where the CPU has it, in INT8
(as `fovea build` does it, and for TensorRT, which is measured for accuracy alone, by ONNX Runtime),
and with backend and precision `auto`, which must be as fast as the best of the others. Speed is
that of infer calls, of a caller a core and of a lone one; every round measures every engine once,
in turn, and the ratio to the fastest FP32 engine of the same round is what can be compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backends import Case, images_per_second
from rich.console import Console
from rich.table import Table
from tables import ratio

from fovea_engines.backends.registry import CPU_BACKENDS
from fovea_engines.build.build import build
from fovea_engines.build.plan import AUTO, BuildPlan, choices
from fovea_engines.device import processor_name, sets_for, usable_cores
from fovea_engines.engine import Engine
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.card import EngineCard

SHARED = Path(__file__).resolve().parents[2] / "shared"
COCO = SHARED / "data" / "coco64"
CASES = {
    "a caller a core": Case("", 1, usable_cores(), "narrow"),
    "alone": Case("", 1, 1, "wide"),
}
MODELS = ("yolov5n", "yolox_nano", "yolov8n", "yolov10n")


def plans(model: Path, folder: Path) -> dict[str, BuildPlan]:
    """Every build of one model, by what it is called in the table."""
    measured = {"data": COCO / "val.json", "images": COCO / "val"}
    found = {
        f"fp32 {backend}": BuildPlan(model, model.stem, folder / backend, backend)
        for backend in CPU_BACKENDS
    }
    if sets_for("bf16"):
        found["bf16"] = BuildPlan(model, model.stem, folder / "bf16", precision="bf16", **measured)
    return found | {
        "fp16": BuildPlan(model, model.stem, folder / "fp16", precision="fp16", **measured),
        "int8": BuildPlan(
            model,
            model.stem,
            folder / "int8",
            precision="int8",
            calibration=COCO / "calibration",
            tensorrt=folder / "tensorrt.onnx",
            **measured,
        ),
        "auto": BuildPlan(
            model,
            model.stem,
            folder / "auto",
            choices=choices(AUTO, AUTO),
            calibration=COCO / "calibration",
            **measured,
        ),
    }


def speeds(
    folders: Mapping[str, Path], case: Case, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Images a second of each engine, a figure a round."""
    engines = {name: Engine.open(folder) for name, folder in folders.items()}
    found: dict[str, list[float]] = {name: [] for name in engines}
    for engine in engines.values():
        images_per_second(engine.session, case, 0)
    for _ in range(rounds):
        for name, engine in engines.items():
            found[name].append(images_per_second(engine.session, case, seconds))
    for engine in engines.values():
        engine.close()
    return found


def compare(found: Mapping[str, list[float]]) -> dict[str, object]:
    """The figures of `speeds`, and their ratios to the fastest FP32 engine of each round.

    `auto` is also compared with the engine that is the fastest over all rounds.
    """
    top = max((name for name in found if name != AUTO), key=lambda name: sum(found[name]))
    best = [max(row) for row in zip(*(found[f"fp32 {b}"] for b in CPU_BACKENDS), strict=True)]
    ratios = {
        name: [round(one / top, 2) for one, top in zip(rates, best, strict=True)]
        for name, rates in found.items()
    }
    return {
        "images_per_s": {name: round(statistics.median(r), 1) for name, r in found.items()},
        "rates": {name: [round(rate, 1) for rate in r] for name, r in found.items()},
        "ratio_to_best_fp32": {name: statistics.median(r) for name, r in ratios.items()},
        "ratios": ratios,
        "auto_to_best": {
            "best": top,
            "ratios": [round(a / b, 2) for a, b in zip(found[AUTO], found[top], strict=True)],
        },
    }


def report(model: Path, rounds: int, seconds: float) -> dict[str, object]:
    """Build, time and collect the figures of one model."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = plans(model, Path(folder))
        cards: dict[str, EngineCard] = {
            name: build(plan, ConsoleProgress()) for name, plan in wanted.items()
        }
        folders = {name: plan.repository / model.stem / "1" for name, plan in wanted.items()}
        found = {
            key: compare(speeds(folders, case, rounds, seconds)) for key, case in CASES.items()
        }
    return {
        **found["a caller a core"],
        "alone": found["alone"],
        "map50_95": {
            name: round(accuracy.map50_95, 4)
            for card in (*cards.values(), cards["int8"])
            for name, accuracy in card.accuracy.items()
        },
        "auto": f"{cards[AUTO].precision} {cards[AUTO].backend}",
        "quality": {name: round(card.agreement.quality, 4) for name, card in cards.items()},
        "kept_float": list(cards["int8"].calibration.kept_float),
        "build_seconds": cards["int8"].build_seconds,
    }


def table(models: Mapping[str, Mapping[str, Any]]) -> Table:
    """The figures for people."""
    shown = Table("model", "engine", "images/s", "to the best FP32", "alone", "mAP50-95")
    for model, figures in models.items():
        for name, rate in figures["images_per_s"].items():
            auto = name == AUTO
            precision = (figures["auto"] if auto else name).split()[0]
            accuracy = figures["map50_95"][precision]
            to_best = figures["auto_to_best"]
            shown.add_row(
                model,
                f"auto: {figures['auto']}; to {to_best['best']} {ratio(to_best['ratios'])}"
                if auto
                else name,
                f"{rate:.1f}",
                ratio(figures["ratios"][name]),
                ratio(figures["alone"]["ratios"][name]),
                f"{accuracy:.3f}",
            )
        judged = figures["map50_95"]["int8 for TensorRT"]
        shown.add_row(model, "int8 for TensorRT", "-", "-", "-", f"{judged:.3f}")
    return shown


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    models = given.models or [SHARED / "models" / f"{name}.onnx" for name in MODELS]
    found = {model.stem: report(model, given.rounds, given.seconds) for model in models}
    Console().print(table(found))
    if given.json:
        head = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor_name()}, {usable_cores()} cores",
        }
        given.json.write_text(json.dumps(head | {"models": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
