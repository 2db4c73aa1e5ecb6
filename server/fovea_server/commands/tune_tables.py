"""Shows a search for settings: while it goes on, and its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fovea_engines.plural import counted
from fovea_engines.progress import Progress
from fovea_server.bench.chart import Axis, Series, chart, round_ticks
from fovea_server.tune.run import Measure, Run, frontier
from fovea_server.tune.search import Search
from fovea_server.tune.setting import Candidate, Setting
from fovea_server.tune.writing import Change

if TYPE_CHECKING:
    from rich.table import Table


def shown(measure: Measure, candidates: Sequence[Candidate], progress: Progress) -> Measure:
    """Show each run that a function measures."""
    count = 0

    def measured(setting: Setting, clients: int, long: bool) -> Run:
        nonlocal count
        count += 1
        run = measure(setting, clients, long)
        found = f"{run.rate:.1f} images/s, p99 {run.p99_ms:.1f} ms"
        what = f"{_title(candidates, setting)}, {counted(clients, 'client')}"
        progress.now(f"run {count}: {what}: {run.failure or found}")
        return run

    return measured


def show(
    name: str,
    candidates: Sequence[Candidate],
    search: Search,
    best: Run,
    now: Run,
    change: Change,
    *,
    dry_run: bool,
) -> None:
    """Print the frontier, the gain, and what changes in config.pbtxt."""
    from rich.console import Console
    from rich.syntax import Syntax

    console = Console(highlight=False)
    console.print(_table(name, candidates, search, best, now))
    for note in _notes(candidates, search, best, now):
        console.print(note, markup=False, soft_wrap=True)
    if best.failure is not None:
        return
    if change.diff:
        console.print(Syntax(change.diff, "diff", theme="ansi_light", background_color="default"))
    for note in _changes(change, dry_run=dry_run):
        console.print(note, markup=False, soft_wrap=True)


def _notes(candidates: Sequence[Candidate], search: Search, best: Run, now: Run) -> Iterator[str]:
    points = len(search.settings) * len(search.clients)
    yield f"{len(search.runs)} runs on a grid of {points}."
    for run in search.runs:
        if run.failure is not None:
            what = _title(candidates, run.setting)
            yield f"failed: {what}, {counted(run.clients, 'client')}: {run.failure}"
    if best.failure is not None:
        yield "No setting was served without failures: nothing changes."
    elif not best.within(search.limit_ms):
        yield (
            f"No setting answers 99 of 100 within {search.limit_ms:g} ms, not even a lone client: "
            "this one is the nearest. Try INT8 (--onnx), a smaller model, or a faster machine."
        )
    if now.rate and best is not now:
        yield (
            f"With {counted(best.clients, 'client')}: {now.rate:.1f} images/s as it is now, "
            f"{best.rate:.1f} with the chosen setting (x{best.rate / now.rate:.2f})."
        )


def _changes(change: Change, *, dry_run: bool) -> Iterator[str]:
    if change.publish:
        yield f"version {change.publish}: {change.candidate.title}, built just now"
    if not change.diff and not change.publish:
        yield "It is served so already: nothing changes."
        return
    if "version_policy" in change.diff:
        yield "The version is pinned: later builds are served once version_policy is taken out."
    if dry_run:
        yield "Nothing is written, as --dry-run asks."
    else:
        yield "Written. A running server serves it after a restart, or by itself in poll mode."


def draw(name: str, candidates: Sequence[Candidate], search: Search, best: Run) -> str:
    """Draw rate against latency of all runs that did not fail, and the frontier, as SVG."""
    good = [run for run in search.runs if run.failure is None]
    edge = list(frontier(good))
    series = [
        Series("no other beats these", [(run.p99_ms, run.rate) for run in edge]),
        *(
            Series(
                f"{candidate.title} ({candidate.version})",
                [(r.p99_ms, r.rate) for r in good if r.setting.version == candidate.version],
                joined=False,
            )
            for candidate in candidates
        ),
        Series("chosen", [(best.p99_ms, best.rate)], joined=False, notes=["chosen"]),
    ]
    most_ms = max((run.p99_ms for run in good), default=1.0)
    limit_ms = search.limit_ms if search.limit_ms < most_ms else None
    return chart(
        f"{name}: images/s against latency",
        Axis("99th percentile of the latency, ms", round_ticks(0, most_ms)),
        Axis("images/s", round_ticks(0, max((run.rate for run in good), default=1.0))),
        series,
        limit_ms,
    )


def _table(
    name: str, candidates: Sequence[Candidate], search: Search, best: Run, now: Run
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title = Text(f"{name}: settings that no other beats in both images/s and latency")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("images/s", "p99 ms", "clients", "version", "cores", "parallel", "batch"):
        table.add_column(column, justify="left" if column == "version" else "right", no_wrap=True)
    table.add_column("", no_wrap=True)
    marked = {id(now): "now"} | {id(best): "chosen"}
    rows = {id(run): run for run in (*frontier(search.runs), best, now)}
    for run in sorted(rows.values(), key=lambda run: run.p99_ms):
        setting = run.setting
        mark = marked.get(id(run), "" if run.within(search.limit_ms) else "over the limit")
        cells = (
            *(f"{run.rate:.1f}", f"{run.p99_ms:.1f}", str(run.clients)),
            f"{setting.version}: {_engine(candidates, setting)}",
            *(str(number or "-") for number in (setting.threads, setting.streams)),
            *(_batches(setting), mark),
        )
        table.add_row(*map(Text, cells), style="bold" if run is best else None)
    return table


def _batches(setting: Setting) -> str:
    waited = f", {setting.delay_us / 1e3:g} ms" if setting.delay_us else ""
    return f"{setting.max_batch}{waited}"


def _engine(candidates: Sequence[Candidate], setting: Setting) -> str:
    return next(each.title for each in candidates if each.version == setting.version)


def _title(candidates: Sequence[Candidate], setting: Setting) -> str:
    parts = [_engine(candidates, setting)]
    if setting.threads:
        parts.append(f"{setting.threads} cores for {setting.streams}")
    if setting.max_batch > 1:
        parts.append(f"batches of {_batches(setting)}")
    return ", ".join(parts)
