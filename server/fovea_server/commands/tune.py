"""`fovea tune`: the settings with which a model is served fastest on this machine."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from fovea_engines.backends.cores import usable_cores
from fovea_engines.commands.options import AsJson, RepositoryOption, find_models
from fovea_engines.plural import counted
from fovea_engines.progress import ConsoleProgress, Progress
from fovea_engines.repository.config_pbtxt import CONFIG_FILE
from fovea_engines.repository.repository import DEFAULT_REPOSITORY, ModelRepository
from fovea_preprocess.errors import InvalidOption
from fovea_server.bench.chart import Axis, Series, chart, round_ticks
from fovea_server.commands.bench import WHOLE, check_plot, parse_numbers
from fovea_server.tune.candidates import find_candidates
from fovea_server.tune.run import Measure, Run, frontier
from fovea_server.tune.search import Search
from fovea_server.tune.setting import Setting, grid, present
from fovea_server.tune.trials import Trials

_SEARCH_PANEL = "Search"


def tune(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model, or its path.")],
    images: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Images as they will come: they are sent to the server.",
            exists=True,
            file_okay=False,
            show_default=False,
        ),
    ],
    serve_flags: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- FLAGS", help="After --: flags of `fovea serve`."),
    ] = None,
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

    Tries the versions of the model that agree with it according to their card (backend, precision),
    cores and parallel executions, and on a GPU batches and queue delays: serves the model with
    each, on a free port, and loads it with images. Uses the whole machine for some minutes, so let
    nothing else run.

    With --p99 it seeks the most images/s of which 99 in 100 come in time, under the load that
    allows it. Ctrl-C stops, and changes nothing.

    Other backends and precisions are tried once they are versions: `fovea build` them first.

    Example: fovea tune yolov8n --images images/ --p99 100ms

    Example: fovea tune yolov8n --images images/ --plot frontier.svg --dry-run
    """
    check_plot(plot)
    limit_ms = _milliseconds(p99)
    loads = sorted(set(map(int, parse_numbers("clients", clients, WHOLE))))
    [path] = find_models(context, repository, model)
    path = path.absolute()
    own = ModelRepository(path.parent)
    progress = ConsoleProgress()
    candidates, left_out = find_candidates(own, path.name)
    for reason in left_out:
        progress.note(f"not tried: {reason}")
    titles = {candidate.version: candidate.title for candidate in candidates}
    cores = usable_cores()
    settings = grid(candidates, cores)
    with Trials(
        path, candidates, images, cores=cores, seconds=seconds, flags=serve_flags or ()
    ) as trials:
        start = present(trials.config, candidates[0], cores)
        if start not in settings:
            settings.append(start)
        search = Search(settings, loads, limit_ms, _shown(trials.measure, titles, progress))
        with progress.phase("tuning"):
            best, now = search.descend(start)
        met = best.failure is None and best.within(limit_ms)
        text = trials.text(best.setting) if met else trials.before
    lines = (trials.before.splitlines(), text.splitlines())
    diff = "\n".join(unified_diff(*lines, CONFIG_FILE, CONFIG_FILE, n=1, lineterm=""))
    if diff and not dry_run:
        own.write_beside(path.name, CONFIG_FILE, text)
    if plot is not None:
        plot.write_text(_draw(path.name, titles, search, best))
    if as_json:
        document = {
            "model": path.name,
            "limit_ms": None if limit_ms == float("inf") else limit_ms,
            "grid": len(settings) * len(loads),
            "best": best.to_json(),
            "now": now.to_json(),
            "within_limit": met,
            "runs": [run.to_json() for run in search.runs],
            "candidates": titles,
            "left_out": left_out,
            "diff": diff,
            "written": bool(diff) and not dry_run,
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        raise typer.Exit(0 if met else 1)
    console = Console(highlight=False)
    console.print(_table(path.name, titles, search, best, now))
    if diff:
        console.print(Syntax(diff, "diff", theme="ansi_light", background_color="default"))
    for note in _notes(titles, search, best, now, diff, dry_run=dry_run):
        console.print(note, markup=False, soft_wrap=True)
    raise typer.Exit(0 if met else 1)


def _milliseconds(text: str | None) -> float:
    if text is None:
        return float("inf")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)", text.strip())
    if match is None or not float(match[1]):
        raise InvalidOption(f"--p99 {text!r}; write a time, e.g. 50ms or 0.2s")
    return float(match[1]) * (1e3 if match[2] == "s" else 1.0)


def _shown(measure: Measure, titles: Mapping[int, str], progress: Progress) -> Measure:
    """Show each run that a function measures."""
    count = 0

    def measured(setting: Setting, clients: int, long: bool) -> Run:
        nonlocal count
        count += 1
        run = measure(setting, clients, long)
        found = f"{run.rate:.1f} images/s, p99 {run.p99_ms:.1f} ms"
        what = f"{_title(titles, setting)}, {counted(clients, 'client')}"
        progress.now(f"run {count}: {what}: {run.failure or found}")
        return run

    return measured


def _notes(
    titles: Mapping[int, str], search: Search, best: Run, now: Run, diff: str, *, dry_run: bool
) -> Iterator[str]:
    points = len(search.settings) * len(search.clients)
    yield f"{len(search.runs)} runs on a grid of {points}."
    for run in search.runs:
        if run.failure is not None:
            what = _title(titles, run.setting)
            yield f"failed: {what}, {counted(run.clients, 'client')}: {run.failure}"
    if best.failure is not None:
        yield "No setting was served without failures: nothing changes."
        return
    if not best.within(search.limit_ms):
        yield (
            f"No setting surely answers 99 of 100 within {search.limit_ms:g} ms, so nothing "
            "changes. Allow more time or fewer --clients, build the model with --precision auto, "
            "or use a smaller model or a faster machine."
        )
        return
    if now.rate and best is not now:
        yield (
            f"With {counted(best.clients, 'client')}: {now.rate:.1f} images/s as it is now, "
            f"{best.rate:.1f} with the chosen setting (x{best.rate / now.rate:.2f})."
        )
    if "version_policy" in diff:
        yield "The version is pinned: later builds are served once version_policy is taken out."
    if not diff:
        yield "It is served so already: nothing changes."
    elif dry_run:
        yield "Nothing is written, as --dry-run asks."
    else:
        yield "Written. A running server serves it after a restart, or by itself in poll mode."


def _draw(name: str, titles: Mapping[int, str], search: Search, best: Run) -> str:
    """Draw rate against latency of all runs that did not fail, and the frontier, as SVG."""
    good = [run for run in search.runs if run.failure is None]
    edge = list(frontier(good))
    series = [
        Series("no other beats these", [(run.p99_ms, run.rate) for run in edge]),
        *(
            Series(
                f"{title} ({version})",
                [(r.p99_ms, r.rate) for r in good if r.setting.version == version],
                joined=False,
            )
            for version, title in titles.items()
        ),
        Series("chosen", [(best.p99_ms, best.rate)], joined=False),
    ]
    most_ms = max((run.p99_ms for run in good), default=1.0)
    limit_ms = search.limit_ms if search.limit_ms < most_ms else None
    return chart(
        f"{name}: images/s against latency",
        Axis("99th percentile of the latency, ms", round_ticks(most_ms)),
        Axis("images/s", round_ticks(max((run.rate for run in good), default=1.0))),
        series,
        limit_ms,
    )


def _table(name: str, titles: Mapping[int, str], search: Search, best: Run, now: Run) -> Table:
    title = Text(f"{name}: settings that no other beats in both images/s and latency")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = ["images/s", "p99 ms", "clients", "version", "cores", "parallel", "batch", ""]
    if not any(setting.max_batch for setting in search.settings):
        columns.remove("batch")
    for column in columns:
        left = column in ("version", "")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    marked = {id(now): "now"} | {id(best): "chosen"}
    rows = {id(run): run for run in (*frontier(search.runs), best, now)}
    for run in sorted(rows.values(), key=lambda run: run.p99_ms):
        setting = run.setting
        mark = marked.get(id(run), "" if run.within(search.limit_ms) else "too slow")
        cells = {
            "images/s": f"{run.rate:.1f}",
            "p99 ms": f"{run.p99_ms:.1f}",
            "clients": str(run.clients),
            "version": f"{setting.version}: {titles[setting.version]}",
            "cores": str(setting.threads or "-"),
            "parallel": str(setting.streams or "-"),
            "batch": _batches(setting),
            "": mark,
        }
        style = "bold" if run is best else None
        table.add_row(*(Text(cells[column]) for column in columns), style=style)
    return table


def _batches(setting: Setting) -> str:
    if not setting.max_batch:
        return "-"
    waited = f", {setting.delay_us / 1e3:g} ms" if setting.delay_us else ""
    return f"{setting.max_batch}{waited}"


def _title(titles: Mapping[int, str], setting: Setting) -> str:
    parts = [titles[setting.version]]
    if setting.threads:
        parts.append(f"{setting.threads} cores for {setting.streams}")
    if setting.max_batch > 1:
        parts.append(f"batches of {_batches(setting)}")
    return ", ".join(parts)
