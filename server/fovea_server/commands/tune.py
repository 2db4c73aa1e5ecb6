"""`fovea tune`: the settings with which a model is served fastest on this machine."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Annotated, get_args

import typer

from fovea_engines.backends.cores import usable_cores
from fovea_engines.build.plan import BuildPlan
from fovea_engines.commands.options import (
    AsJson,
    RepositoryOption,
    check_options,
    find_models,
)
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.card import Precision
from fovea_engines.repository.repository import DEFAULT_REPOSITORY, ModelRepository
from fovea_preprocess.errors import InvalidOption
from fovea_server.commands.bench import WHOLE, check_plot, parse_numbers
from fovea_server.tune.search import Search
from fovea_server.tune.setting import grid, present

_BUILD_PANEL = "Engines to build"
_SEARCH_PANEL = "Search"


def tune(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model, or its path.")],
    serve_flags: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- FLAGS", help="After --: flags of `fovea serve`."),
    ] = None,
    images: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Images as they will come: they are sent to the server.",
            exists=True,
            file_okay=False,
            show_default=False,
        ),
    ] = ...,  # type: ignore[assignment]  # required
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    p99: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="99 of 100 answers must come within this time: 50ms, 0.2s.",
            show_default="none: images/s alone count",
        ),
    ] = None,
    clients: Annotated[
        str,
        typer.Option(
            metavar="N,N,...",
            help="Loads to measure: clients that each send one image after the other.",
            rich_help_panel=_SEARCH_PANEL,
        ),
    ] = "1,2,4,8,16,32",
    seconds: Annotated[
        float,
        typer.Option(
            min=0.2,
            help="Length of a run; slow models get up to four times as long.",
            rich_help_panel=_SEARCH_PANEL,
        ),
    ] = 2.0,
    exhaustive: Annotated[
        bool,
        typer.Option(
            "--exhaustive",
            help="Measure every setting under every load, to check the search: it takes five "
            "times as many runs or more.",
            rich_help_panel=_SEARCH_PANEL,
        ),
    ] = False,
    onnx: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.onnx",
            help="The file that the model was built from: engines of other backends and "
            "precisions are built, checked and tried, too. The best becomes a version.",
            exists=True,
            dir_okay=False,
            rich_help_panel=_BUILD_PANEL,
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(metavar="P,P,...", help="Precisions to build.", rich_help_panel=_BUILD_PANEL),
    ] = "fp32,int8",
    max_batch: Annotated[
        str,
        typer.Option(
            metavar="N,N,...",
            help="Largest batches to build for. On a CPU, 1 is nearly always best.",
            rich_help_panel=_BUILD_PANEL,
        ),
    ] = "1",
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Images to measure the ranges of INT8 on.",
            show_default="those of --images",
            exists=True,
            file_okay=False,
            rich_help_panel=_BUILD_PANEL,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Draw images/s against latency.", dir_okay=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the settings with which a model is served fastest, and write them to config.pbtxt.

    Tries versions (backend, precision), cores, parallel executions, batches and queue delays:
    serves the model with each, on a free port, and loads it with images. Only versions count that
    agree with the model according to their card. Uses the whole machine for some minutes, so let
    nothing else run.

    With --p99 it seeks the most images/s of which 99 in 100 come in time, under the load that
    allows it. Ctrl-C stops, and changes nothing.

    Example: fovea tune yolov8n --images images/ --p99 100ms

    Example: fovea tune yolov8n --images images/ --onnx yolov8n.onnx --plot frontier.svg --dry-run
    """
    from fovea_server.commands.tune_tables import draw, show, shown
    from fovea_server.tune.candidates import backends_here, build_candidates, find_candidates
    from fovea_server.tune.trials import Trials
    from fovea_server.tune.writing import change, write

    built = {"onnx": ()}
    check_options(context, needs=dict.fromkeys(("precision", "max_batch", "calibration"), built))
    check_plot(plot)
    limit_ms = _milliseconds(p99)
    loads = sorted(set(map(int, parse_numbers("clients", clients, WHOLE))))
    kinds = list(product(backends_here(), _precisions(precision)))
    batches = list(map(int, parse_numbers("max-batch", max_batch, WHOLE)))
    [path] = find_models(context, repository, model)
    path = path.absolute()
    own = ModelRepository(path.parent)
    progress = ConsoleProgress()
    with tempfile.TemporaryDirectory(prefix="fovea-tune-") as scratch:
        found = find_candidates(own, path.name)
        if onnx is not None:
            found = build_candidates(
                found,
                BuildPlan(
                    source=onnx,
                    name=path.name,
                    repository=Path(scratch),
                    calibration=calibration or images,
                ),
                kinds,
                batches,
                own.next_version(path.name),
                progress,
            )
        for reason in found.left_out:
            progress.note(f"not tried: {reason}")
        cores = usable_cores()
        settings = grid(found.candidates, cores)
        with Trials(
            path, found.candidates, images, cores=cores, seconds=seconds, flags=serve_flags or ()
        ) as trials:
            start = present(trials.config, found.candidates[0], cores)
            if start not in settings:
                settings.append(start)
            measure = shown(trials.measure, found.candidates, progress)
            search = Search(settings, loads, limit_ms, measure)
            with progress.phase("tuning"):
                best = search.exhaust() if exhaustive else search.descend(start)
            now = search.now or trials.measure(start, best.clients, True)
            changed = change(own, path.name, found.candidates, best.setting, trials)
        if not dry_run and best.failure is None:
            write(own, path.name, changed)
    if plot is not None:
        plot.write_text(draw(path.name, found.candidates, search, best))
    if as_json:
        document = {
            "model": path.name,
            "limit_ms": None if limit_ms == float("inf") else limit_ms,
            "grid": len(settings) * len(loads),
            "best": best.to_json(),
            "now": now.to_json(),
            "within_limit": best.within(limit_ms),
            "runs": [run.to_json() for run in search.runs],
            "candidates": {c.version: c.title for c in found.candidates},
            "left_out": found.left_out,
            "published": changed.publish,
            "diff": changed.diff,
            "written": not dry_run and best.failure is None,
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        show(path.name, found.candidates, search, best, now, changed, dry_run=dry_run)


def _milliseconds(text: str | None) -> float:
    if text is None:
        return float("inf")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)", text.strip())
    if match is None or not float(match[1]):
        raise InvalidOption(f"--p99 {text!r}; write a time, e.g. 50ms or 0.2s")
    return float(match[1]) * (1e3 if match[2] == "s" else 1.0)


def _precisions(text: str) -> list[Precision]:
    known: dict[str, Precision] = {each: each for each in get_args(Precision)}
    asked = [each.strip() for each in text.split(",")]
    if unknown := [each for each in asked if each not in known]:
        raise InvalidOption(f"--precision {unknown[0]!r}; there are {', '.join(known)}")
    return [known[each] for each in asked]
