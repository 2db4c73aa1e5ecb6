"""`fovea tune`: finds the fastest settings for serving a model on this machine."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.syntax import Syntax

from fovea_engines.device import usable_cores
from fovea_engines.progress import ConsoleProgress, Progress
from fovea_engines.repository.config_pbtxt import CONFIG_FILE
from fovea_engines.repository.repository import DEFAULT_REPOSITORY, ModelRepository
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.text import counted
from fovea_server.bench.tune.candidates import BuiltVersion, find_candidates
from fovea_server.bench.tune.run import Measure, Run
from fovea_server.bench.tune.search import Search
from fovea_server.bench.tune.setting import Setting, grid, present_setting
from fovea_server.bench.tune.trials import Trials
from fovea_server.cli.bench_tables import uncut_console
from fovea_server.cli.options import (
    AllowCodeOption,
    AsJson,
    ModelFolderArgument,
    PlotOption,
    RepositoryOption,
    ServeFlags,
    check_plot,
    find_models,
    folder_option,
    parse_clients,
)
from fovea_server.cli.promote import write_change
from fovea_server.cli.tune_tables import (
    busy_note,
    busy_runs,
    describe_changes,
    draw,
    notes,
    setting_title,
    table,
)
from fovea_server.rollout.promotion_documents import Promotion

_MIN_LIMIT_MS = 100.0

_search_option = partial(typer.Option, rich_help_panel="Search")


def tune(
    context: typer.Context,
    model: ModelFolderArgument,
    images: Annotated[
        Path,
        folder_option(
            help="Folder of typical images of your application. The clients send them.",
            show_default=False,
        ),
    ],
    serve_flags: ServeFlags = None,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    allow_code: AllowCodeOption = False,
    p99: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=(
                "Limit of the 99th percentile of the latency, e.g. 50ms or 0.2s. If no setting "
                "meets it, nothing changes, and the exit status is 1."
            ),
            show_default="twice the p99 latency of single images, at least 100ms",
        ),
    ] = None,
    clients: Annotated[
        str,
        _search_option(
            metavar="N,N,...",
            help=(
                "Numbers of parallel clients to measure, separated by commas. A client sends its "
                "next image when it has received a response."
            ),
        ),
    ] = "1,2,4,8,16,32",
    seconds: Annotated[
        float,
        _search_option(
            metavar="SECONDS",
            min=0.2,
            help=(
                "Duration of each run in seconds. Runs of slow models can take up to four times "
                "as long."
            ),
        ),
    ] = 2.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the changes, but do not apply them.")
    ] = False,
    plot: PlotOption = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest version and settings of a model, and apply them.

    The command writes the settings into config.pbtxt. If another version is faster, the command
    promotes it.

    The command measures the versions of the model (backend, precision) whose cards record a
    sufficient agreement with the source model. For each version, it tries several numbers of CPU
    cores and of parallel executions, and on a GPU several batch sizes and queue delays. It serves
    the model with each setting on a free port, and sends the images. It uses the whole machine for
    some minutes, so run nothing else at the same time.

    The best setting has the most images per second while 99 of 100 responses arrive within --p99.
    After Ctrl-C, nothing changes.

    To try other backends and precisions, first build them as versions with `fovea build`.

    Example: fovea tune yolov8n --images images/ --p99 100ms

    Example: fovea tune yolov8n --images images/ --plot frontier.svg --dry-run
    """
    check_plot(plot)
    limit_ms = None if p99 is None else _parse_milliseconds(p99)
    loads = sorted(set(parse_clients(clients)))
    [path] = find_models(context, repository, model)
    path = path.absolute()
    own = ModelRepository(path.parent)
    progress = ConsoleProgress()
    candidates, left_out = find_candidates(own, path.name)
    for reason in left_out:
        progress.note(f"not tried: {reason}")
    titles = {candidate.version: candidate.title for candidate in candidates}
    cores = usable_cores()
    flags = [*(serve_flags or ()), *["--allow-code"] * allow_code]
    with Trials(path, candidates, images, cores=cores, seconds=seconds, flags=flags) as trials:
        start = present_setting(trials.config, candidates[0], cores)
        settings = grid(candidates, cores)
        if start not in settings:
            settings.append(start)
        measure = _show_runs(trials.measure, titles, cores, progress)
        search = _begin_search(settings, start, loads, limit_ms, measure, trials.lasts, progress)
        with progress.phase("tuning"):
            best, now = search.descend(start)
        met = best.failure is None and best.within(search.limit_ms)
        text = trials.text(best.setting) if met else trials.before
    chosen = best.setting.version if met else start.version
    promoted = None if chosen == start.version else chosen
    lines = (trials.before.splitlines(), text.splitlines())
    diff = "\n".join(unified_diff(*lines, CONFIG_FILE, CONFIG_FILE, n=1, lineterm=""))
    if diff and not dry_run:
        own.write_beside(path.name, CONFIG_FILE, text)
    if promoted is not None and not dry_run:
        write_change(own, path.name, Promotion(version=promoted, why="fovea tune"))
    if plot is not None:
        plot.write_text(draw(path.name, titles, search, best), "utf-8")
    if as_json:
        document = {
            "model": path.name,
            **_document(search, best, now, candidates, cores, met=met),
            "left_out": left_out,
            "diff": diff,
            "promoted": promoted,
            "written": bool(diff or promoted) and not dry_run,
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        console = uncut_console()
        console.print(table(path.name, candidates, search, best, now))
        if diff:
            console.print(Syntax("", "diff", theme="ansi_light").highlight(diff), end="")
        changes = describe_changes(path.name, diff, start.version, promoted, dry_run=dry_run)
        for note in (*notes(titles, search, best, now), *(changes if met else ())):
            console.print(note, markup=False, soft_wrap=True)
        if busy := busy_note(search.runs, cores):
            console.print(busy, style="bold", markup=False, soft_wrap=True)
    raise typer.Exit(0 if met or p99 is None else 1)


def _begin_search(
    settings: Sequence[Setting],
    start: Setting,
    loads: Sequence[int],
    limit_ms: float | None,
    measure: Measure,
    lasts: Callable[[bool], float],
    progress: Progress,
) -> Search:
    """Begin a search with a run of single images.

    The latency of this run determines the limit, if the user set none, and the duration of runs.
    """
    alone = measure(start, 1, False)
    if limit_ms is None:
        limit_ms = max(_MIN_LIMIT_MS, math.ceil(2 * alone.p99_ms)) if alone.rate else math.inf
        progress.note(
            f"a single image takes {alone.p99_ms:.0f} ms, so the limit for p99 is {limit_ms:.0f} "
            "ms (--p99 sets another limit)"
        )
    search = Search(settings, loads, limit_ms, measure, [alone], lasts)
    minutes = max(1, math.ceil(search.seconds / 60))
    search.until = time.monotonic() + 60 * minutes
    progress.note(
        f"{counted(len(settings), 'setting')}, {counted(len(loads), 'load')}: at most "
        f"{search.most_runs} runs in about {counted(minutes, 'minute')}"
    )
    return search


def _document(
    search: Search,
    best: Run,
    now: Run,
    candidates: Sequence[BuiltVersion],
    cores: int,
    *,
    met: bool,
) -> dict[str, Any]:
    """Return the result of a search as the document for --json."""
    return {
        "limit_ms": None if search.limit_ms == math.inf else search.limit_ms,
        "grid": len(search.settings) * len(search.clients),
        "best": best.to_json(),
        "now": now.to_json(),
        "within_limit": met,
        "busy_runs": len(busy_runs(search.runs, cores)),
        "runs": [run.to_json() for run in search.runs],
        "candidates": {
            candidate.version: {
                "title": candidate.title,
                "agreement": candidate.agreement,
                "accuracy": candidate.accuracy and asdict(candidate.accuracy),
            }
            for candidate in candidates
        },
    }


def _parse_milliseconds(text: str) -> float:
    """Parse the value of --p99, such as "50ms" or "0.2s", to milliseconds.

    Raises:
        InvalidOption: the text has another form.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)", text.strip())
    if match is None or not float(match[1]):
        raise InvalidOption(f"--p99 is {text!r}, but must be a time, such as 50ms or 0.2s")
    return float(match[1]) * (1e3 if match[2] == "s" else 1.0)


def _show_runs(
    measure: Measure, titles: Mapping[int, str], cores: int, progress: Progress
) -> Measure:
    """Return a function like `measure` that also shows each run.

    It warns once if other programs use the machine.
    """
    count, warned = 0, False

    def measured(setting: Setting, clients: int, long: bool) -> Run:
        nonlocal count, warned
        count += 1
        run = measure(setting, clients, long)
        if not warned and busy_runs([run], cores):
            warned = True
            progress.note(
                f"the machine is busy: other programs used {run.taken_cores:.1f} of "
                f"{counted(cores, 'core')} during this run. Stop them"
            )
        found = f"{run.rate:.1f} images/s, p99 {run.p99_ms:.1f} ms"
        what = f"{setting_title(titles, setting)}, {counted(clients, 'client')}"
        progress.now(f"run {count}: {what}: {run.failure or found}")
        return run

    return measured
