"""`fovea sensitivity`: ranks the blocks of a model by their loss in INT8."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fovea_engines.build.int8 import BUDGET, Judge
from fovea_engines.build.open_question import check_head_decided
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.heads.presets import read_preprocess
from fovea_engines.progress import ConsoleProgress
from fovea_engines.quantization.calibrate import find_ranges
from fovea_engines.quantization.quantisation import quantisable_layers
from fovea_engines.quantization.search import Int8Candidates, SensitivitySearch
from fovea_engines.repository.locking import temporary_folder
from fovea_preprocess.errors import BuildError
from fovea_server.cli.options import (
    AsJson,
    BackendOption,
    CalibrationOption,
    CalibratorOption,
    HeadOption,
    ModelArgument,
    PreprocessOption,
    SizeOption,
    folder_option,
    head_name,
    parse_size,
    runtime,
)


def sensitivity(
    model: ModelArgument,
    calibration: CalibrationOption,
    images: Annotated[
        Path | None,
        folder_option(
            help=(
                "Folder of images on which the accuracy loss is measured; at most 24 images are "
                "used."
            ),
            show_default=("the images of --calibration"),
        ),
    ] = None,
    calibrator: CalibratorOption = "percentile",
    backend: BackendOption = "auto",
    size: SizeOption = None,
    head: HeadOption = None,
    preprocess: PreprocessOption = None,
    as_json: AsJson = False,
) -> None:
    """Rank the blocks of a model by the accuracy they lose in INT8.

    The command converts the model to INT8, but keeps one block at a time in floating point, and
    compares the results with the source model. This takes seconds per block. `fovea build
    --exclude-nodes auto` searches in the same way if the agreement is poor. This command always
    searches, and writes no engine.

    Example: fovea sensitivity yolov8n.onnx --calibration images/
    """
    # The repository is empty, so that the command uses no calibration ranges of an earlier build.
    with temporary_folder("sensitivity") as empty:
        plan = BuildPlan(
            source=model,
            name="sensitivity",
            repository=empty,
            backend=runtime(backend),
            size=parse_size(size),
            family=head_name(head),
            images=images,
            precision="int8",
            calibration=calibration,
            calibrator=calibrator,
            preprocess=None if preprocess is None else read_preprocess(preprocess),
        )
        try:
            found = _search(plan)
        except OSError as error:
            raise BuildError(
                f"{error.filename} cannot be read or written ({error.strerror})"
            ) from error
    if as_json:
        typer.echo(json.dumps(_to_json(found), indent=2))
        return
    console = Console()
    console.print(
        f"agreement {found.base.quality:.3f} of 1 with every block in INT8", highlight=False
    )
    console.print(_table(found))
    console.print(_advice(found), markup=False, highlight=False, soft_wrap=True)


def _search(plan: BuildPlan) -> SensitivitySearch:
    progress = ConsoleProgress()
    prepared = prepare(plan, progress)
    check_head_decided(plan, prepared)
    layers = quantisable_layers(prepared)
    ranges, _ = find_ranges(plan, prepared, progress)
    with progress.phase("sensitivity"):
        judge = Judge(plan, prepared)
        candidates = Int8Candidates(judge, prepared.graph, ranges, plan.encodings[0])
        return candidates.search(layers, (), candidates.score(()), progress)


def _to_json(found: SensitivitySearch) -> dict[str, object]:
    return {
        "agreement": found.base.quality,
        "blocks": [asdict(one) for one in found.ranking],
        "keep_float": [one.block for one in found.kept],
        "agreement_kept": found.reached.quality,
    }


def _table(found: SensitivitySearch) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("block", overflow="fold")
    for column in ("layers", "agreement", "gain"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found.ranking:
        figures = (str(len(one.layers)), f"{one.quality:.3f}", f"{one.gain:+.3f}")
        table.add_row(Text(one.block), *figures)
    return table


def _advice(found: SensitivitySearch) -> str:
    most = found.ranking[0]
    if found.kept:
        options = " ".join(f"--exclude-nodes {shlex.quote(one.block)}" for one in found.kept)
        short = "" if found.reached.margin >= 0 else f" (below the target of {BUDGET:.2f})"
        return f"Agreement {found.reached.quality:.3f} with: {options}{short}"
    if found.base.margin < 0 or most.gain <= 0:
        return (
            "No single block raises the agreement if it keeps float precision: use "
            "--exclude-nodes none"
        )
    return (
        f"The agreement already reaches the target of {BUDGET:.2f} with --exclude-nodes none. For "
        f"a higher agreement, start with --exclude-nodes {shlex.quote(most.block)}"
    )
