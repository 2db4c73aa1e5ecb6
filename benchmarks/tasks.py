"""Measures the accuracy of models of several tasks in FP32, FP16 and INT8 on this CPU.

    python benchmarks/tasks.py [MODEL ...] [--json FILE]

Each model is built in FP32, FP16 and INT8 as `fovea build` does it. A segmenter is measured with
the polygons of coco64/labels-seg: mAP50-95 of masks and of boxes. Every model is compared with its
source on the same images: masks by their overlap, keypoints by COCO's similarity (OKS), classes by
the first one, foregrounds by the mean difference.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name, usable_cores
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.card import EngineCard

SHARED = Path(__file__).resolve().parents[2] / "shared"
COCO = SHARED / "data" / "coco64"
MODELS = ("yolov8n-seg-320", "yolov8n-pose", "mobilenetv2", "u2netp")
PRECISIONS = ("fp32", "fp16", "int8")


def cards(model: Path) -> dict[str, EngineCard]:
    """The cards of one model's engines, by precision."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for precision in PRECISIONS:
            plan = BuildPlan(
                model,
                model.stem,
                Path(folder) / precision,
                precision=precision,
                calibration=COCO / "calibration",
                # The labels at hand have masks, and neither keypoints nor classes of images.
                data=COCO / "labels-seg" if "seg" in model.stem else None,
                images=COCO / "val",
            )
            found[precision] = build(plan, ConsoleProgress())
    return found


def figures(card: EngineCard) -> dict[str, float | str | int | None]:
    """Return the figures of a card by name."""
    agreement, accuracy = card.agreement, card.accuracy.get(card.precision)
    assert agreement is not None, "a build measures it"
    rows = accuracy.rows if accuracy else {}
    return {
        "accuracy": next(iter(rows), None),
        "map50_95": accuracy and round(accuracy.map50_95, 4),
        "box_map50_95": accuracy and accuracy.box_map50_95 and round(accuracy.box_map50_95, 4),
        "agreement": round(agreement.quality, 4),
        "by": agreement.overlap,
        "mean_overlap": agreement.mean_iou and round(agreement.mean_iou, 4),
        "same_top": agreement.same_top,
        "shared": agreement.shared and round(agreement.shared, 4),
        "kept_float": len(card.calibration.kept_float) if card.calibration else 0,
        "backend": card.backend,
    }


def table(found: dict[str, dict[str, dict[str, float | str | int | None]]]) -> Table:
    """The figures for people."""
    columns = ("accuracy", "map50_95", "box_map50_95", "agreement", "by", "same_top", "shared")
    shown = Table("model", "precision", *columns)
    for model, by_precision in found.items():
        for precision, row in by_precision.items():
            cells = ("-" if row[name] is None else str(row[name]) for name in columns)
            shown.add_row(model, precision, *cells)
    return shown


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    models = given.models or [SHARED / "models" / f"{name}.onnx" for name in MODELS]
    found = {
        model.stem: {precision: figures(card) for precision, card in cards(model).items()}
        for model in models
    }
    Console().print(table(found))
    if given.json:
        head = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor_name()}, {usable_cores()} cores",
        }
        given.json.write_text(json.dumps(head | {"models": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
