"""Measures what INT8 gains and costs in detection transformers on this CPU.

    PYTHONPATH=. python benchmarks/transformers.py [MODEL ...] [--trained FILE] [--json FILE]

Of each MODEL the time and the agreement are measured with every layer in INT8: weights may be
random. Of a trained one, as `python -m tools.demo_models.train transformer` makes it, also mAP50-95
on held-out scenes, with the layers in float that `fovea build --max-drop 0.01` keeps so, and for
each calibrator. Time is CPU time of one thread, FP32 and INT8 in turn in every round; the table has
the ratio, and the shares of the operators that stay float in FP32's time (OpenVINO's counters).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from PIL import Image
from rich.console import Console
from rich.table import Table
from tables import ratio

from fovea_engines.backends.registry import CPU_BACKENDS
from fovea_engines.build.assemble import candidate
from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.build.plan import AUTO, BuildPlan
from fovea_engines.build.prepare import PreparedModel, prepare
from fovea_engines.device import processor_name
from fovea_engines.engine import Engine
from fovea_engines.evaluation.agreement.measure import measure
from fovea_engines.evaluation.labels import read_labelled
from fovea_engines.evaluation.reference import answers, read_samples
from fovea_engines.heads.recognise import open_head
from fovea_engines.progress import ConsoleProgress
from fovea_engines.quantization.quantisation import plan_quantisation
from fovea_engines.quantization.ranges import Method
from fovea_engines.quantization.search import int8_graph
from fovea_preprocess.errors import BuildError

COCO = Path(__file__).resolve().parents[2] / "shared" / "data" / "coco64"
CALIBRATION_SCENES, HELDOUT_SCENES = 48, 48
AGREEMENT_IMAGES = 16
METHODS: tuple[Method, ...] = ("percentile", "mse")


def scenes(folder: Path) -> tuple[Path, Path, Path]:
    """Compose scenes to calibrate on, of the training's kind, and held-out ones with labels."""
    from tools.demo_models.heldout import coco_document, heldout_scenes
    from tools.demo_models.scenes import Layout, compose

    held, calibration = folder / "heldout", folder / "calibration"
    for each in (held, calibration):
        each.mkdir()
    found = heldout_scenes(HELDOUT_SCENES)
    (folder / "coco.json").write_text(json.dumps(coco_document(found)))
    for number, scene in enumerate(found):
        Image.fromarray(scene.pixels).save(held / f"{number}.png")
    for seed in range(CALIBRATION_SCENES):
        scene = compose(seed, "train", Layout(320, 320))
        Image.fromarray(scene.pixels).save(calibration / f"{seed}.png")
    return calibration, held, folder / "coco.json"


def cpu_ratios(one: Engine, other: Engine, rounds: int) -> list[float]:
    """CPU time of `one` over that of `other`, on noise, a figure a round."""
    calls = [caller(engine) for engine in (one, other)]
    found = []
    for _ in range(rounds):
        first, second = (min(spent(call) for _ in range(3)) for call in calls)
        found.append(round(first / second, 3))
    return found


def caller(engine: Engine) -> Callable[[], object]:
    """Infer one image in one thread."""
    image = engine.session.inputs[0]
    noise = np.random.default_rng(0).random((1, *image.shape[1:]), np.float32)
    feeds = engine.feeds(noise.astype(image.numpy_dtype))
    session = engine.session
    session.infer(feeds, alone=False)
    return partial(session.infer, feeds, alone=False)


def spent(call: Callable[[], object]) -> float:
    """Seconds of CPU time of this process."""
    began = time.process_time()
    call()
    return time.process_time() - began


def shares(prepared: PreparedModel) -> dict[str, float]:
    """Shares of kinds of layers in FP32's time, by OpenVINO's counters."""
    core = openvino.Core()
    model = core.read_model(prepared.graph.SerializeToString())
    model.reshape([1, *prepared.inputs[0].shape[1:]])
    options = {"PERF_COUNT": True, "INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", options).create_infer_request()
    row = np.zeros((1, *prepared.inputs[0].shape[1:]), np.float32)
    taken: Counter[str] = Counter()
    for _ in range(5):
        request.infer([row])
        for one in request.profiling_info:
            taken[one.node_type] += one.real_time.total_seconds()
    total = sum(taken.values())
    return {kind: round(value / total, 3) for kind, value in taken.most_common(6)}


def judge(
    plan: BuildPlan, truth: LabelledEvaluation | None, prepared: PreparedModel, rounds: int
) -> dict[str, Any]:
    """Figures of one model, backend and calibrator."""
    found = plan_quantisation(plan, prepared, truth, ConsoleProgress())
    encoding = plan.encodings[0]
    graph = int8_graph(prepared.graph, found.ranges, encoding, found.kept_float)
    outputs = [output.name for output in prepared.outputs]
    head = open_head(prepared.head, prepared.inputs)
    with ExitStack() as opened:
        real = opened.enter_context(candidate(plan, prepared, prepared.graph, "fp32", encoding))
        integers = opened.enter_context(candidate(plan, prepared, graph, "int8", encoding))
        samples = read_samples(
            plan.source, prepared.preprocess, outputs, plan.images, AGREEMENT_IMAGES, head=head
        )
        agreement = measure(integers.head, answers(integers, samples))
        accuracy = {} if truth is None else {
            "fp32": round(truth.source.figure, 4), "int8": round(truth.measure_figure(integers), 4)
        }  # fmt: skip
        ratios = cpu_ratios(real, integers, rounds)
    kinds = Counter(n.op_type for n in prepared.graph.graph.node if n.name in found.layers)
    return {
        "speed": statistics.median(ratios),
        "ratios": ratios,
        "quality": round(agreement.least, 3),
        "map50_95": accuracy,
        "layers": dict(kinds),
        "kept_float": list(found.kept_float),
    }


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--trained", type=Path, help="transformer of digits, with mAP")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    shown = Table("model", "backend", "calibrator", "INT8 to FP32", "quality", "mAP50-95", "float")
    kept: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = [
            BuildPlan(model, model.stem, folder, backend, precision="int8", keep_float=(),
                calibration=COCO / "calibration", images=COCO / "val", preprocess={})
            for model in given.models for backend in CPU_BACKENDS
        ]  # fmt: skip
        if given.trained:
            calibration, held, labels = scenes(folder)
            trained = BuildPlan(
                given.trained, given.trained.stem, folder, precision="int8", keep_float=(AUTO,),
                calibration=calibration, images=held, data=labels,
                preprocess={"fit": "letterbox"},
            )  # fmt: skip
            cases += [
                replace(trained, backend=backend, calibrator=method)
                for backend in CPU_BACKENDS for method in METHODS
            ]  # fmt: skip
        truth: LabelledEvaluation | None = None
        for plan in cases:
            prepared = prepare(plan, ConsoleProgress())
            if plan.data is not None and truth is None:
                read = read_labelled(plan.data, plan.images).match_classes(prepared.labels, None)
                truth = LabelledEvaluation(plan, prepared, read, ConsoleProgress())
            try:
                figures = judge(plan, truth, prepared, given.rounds)
            except BuildError as error:
                Console().print(f"{plan.name} on {plan.backend}: {error}")
                continue
            own = kept.setdefault(plan.name, {"shares_of_fp32": shares(prepared)})
            own[f"{plan.backend} {plan.calibrator}"] = figures
            accuracy = " to ".join(f"{value:.3f}" for value in figures["map50_95"].values())
            shown.add_row(
                plan.name, plan.backend, plan.calibrator, ratio(figures["ratios"]),
                f"{figures['quality']:.3f}", accuracy, str(len(figures["kept_float"])),
            )  # fmt: skip
    Console().print(shown)
    for model, figures in kept.items():
        print(model, figures["shares_of_fp32"])
    if given.json:
        head = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor_name()}, {os.cpu_count()} cores",
            "load": [round(one, 1) for one in os.getloadavg()],
        }
        given.json.write_text(json.dumps(head | {"models": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
