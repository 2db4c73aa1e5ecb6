"""Shows the result of a search for settings as a table, a chart and notes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from fovea_preprocess.text import counted
from fovea_server.bench.chart import Axis, Series, chart, round_ticks
from fovea_server.bench.tune.candidates import BuiltVersion
from fovea_server.bench.tune.run import Run, fold_all, fold_compared, frontier
from fovea_server.bench.tune.search import Search
from fovea_server.bench.tune.setting import Setting

# Fraction of the cores that other programs may use during a run. If they use more, the measurement
# is unreliable.
_BUSY = 0.1


def notes(titles: Mapping[int, str], search: Search, best: Run, now: Run) -> Iterator[str]:
    """Yield notes on the best setting and the failed runs."""
    pairs = len(search.settings) * len(search.clients)
    tried = len({(run.setting, run.clients) for run in search.runs})
    yield (
        f"{len(search.runs)} runs tried {tried} of {counted(pairs, 'combination')} of settings "
        "and loads; the best combinations ran several times."
    )
    for run in search.runs:
        if run.failure is not None:
            what = setting_title(titles, run.setting)
            yield f"failed: {what}, {counted(run.clients, 'client')}: {run.failure}"
    if best.failure is not None:
        yield "No setting was served without failures: nothing changes."
        return
    if not best.within(search.limit_ms):
        yield (
            f"No setting kept the p99 within {search.limit_ms:g} ms, so nothing changes. Allow "
            "more time or fewer --clients, build the model with --precision auto, or use a "
            "smaller model or a faster machine."
        )
        return
    if now.rate and best.setting != now.setting:
        yield (
            f"With {counted(best.clients, 'client')}: {now.rate:.1f} images/s with the present "
            f"setting, {best.rate:.1f} with the chosen setting (x{best.rate / now.rate:.2f})."
        )


def describe_changes(
    name: str, diff: str, before: int, promoted: int | None, *, dry_run: bool
) -> Iterator[str]:
    """Yield notes on the changes of config.pbtxt and of the current version.

    Args:
        name: name of the model.
        diff: difference of config.pbtxt; empty without one.
        before: version that was current.
        promoted: version that is promoted in its place; None if it stays.
        dry_run: True if nothing is written.
    """
    if not diff and promoted is None:
        yield "The model is served with these settings already: nothing changes."
        return
    if promoted is not None:
        verb = "would be" if dry_run else "is"
        yield f"Version {promoted} {verb} current, in place of version {before}."
    if dry_run:
        yield "Nothing was written, because of --dry-run."
        return
    if promoted is not None:
        yield f"To go back: fovea rollback {name}"
    yield "A running server uses the settings after a restart, or by itself in poll mode."


def draw(name: str, titles: Mapping[int, str], search: Search, best: Run) -> str:
    """Draw the rate and the latency of each setting under each load, as SVG.

    The chart also marks the chosen setting, and the settings that no other setting beats.
    """
    runs = fold_all(search.runs)
    good = [run for run in runs if run.failure is None and math.isfinite(run.p99_ms)]
    edge = list(frontier(good))
    series = [
        Series("best settings", [(run.p99_ms, run.rate) for run in edge]),
        *(
            Series(
                f"{title} ({version})",
                [(r.p99_ms, r.rate) for r in good if r.setting.version == version],
                joined=False,
            )
            for version, title in titles.items()
        ),
        Series("chosen", [(best.p99_ms, best.rate)] if best in good else [], joined=False),
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


def table(
    name: str, candidates: Sequence[BuiltVersion], search: Search, best: Run, now: Run
) -> Table:
    """Return a table of the best settings, with the present setting and the chosen setting.

    A setting is in the table if no other setting is better in both rate and latency. A setting that
    was better than the chosen setting once, but not again when it was repeated, is left out.
    """
    by_version = {candidate.version: candidate for candidate in candidates}
    # The accuracy is shown if the builds had labels, because it then decides in a build.
    metrics = [one.accuracy.metric for one in candidates if one.accuracy is not None]
    decides = metrics[0] if metrics else "agreement"
    title = Text(f"{name}: settings that no other beats in both images/s and latency")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    batch = ["batch"] * any(setting.max_batch for setting in search.settings)
    columns = [
        "images/s (range)",
        "p99 ms (range)",
        "clients",
        "version",
        decides,
        "cores",
        "parallel",
        *batch,
        "",
    ]
    for column in columns:
        left = column in ("version", "")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    marks = {now.setting: ["now"]}
    marks.setdefault(best.setting, []).append(
        "chosen" if best.within(search.limit_ms) else "nearest"
    )
    good = frontier(fold_compared(search.runs, best, search.limit_ms))
    rows = {run.setting: run for run in good if not run.beats(best)}
    rows |= {now.setting: now} | {best.setting: best}
    for run in sorted(rows.values(), key=lambda run: run.p99_ms):
        setting = run.setting
        candidate = by_version[setting.version]
        accuracy = candidate.accuracy
        figure = (accuracy and accuracy.figure) if metrics else candidate.agreement
        remark = "too slow"
        if run.within(search.limit_ms):
            remark = "" if run.rate <= best.rate else "not each time" if run.long else "in one run"
        cells = {
            "images/s (range)": _format_range(run.rate, run.rates),
            "p99 ms (range)": _format_range(run.p99_ms, run.p99s_ms),
            "clients": str(run.clients),
            "version": f"{setting.version}: {candidate.title}",
            decides: "-" if figure is None else f"{figure:.3f}",
            "cores": str(setting.threads or "-"),
            "parallel": str(setting.streams or "-"),
            "batch": _batches(setting),
            "": ", ".join(marks.get(setting, [remark])),
        }
        style = "bold" if run is best else None
        table.add_row(*(Text(cells[column]) for column in columns), style=style)
    return table


def busy_runs(runs: Sequence[Run], cores: int) -> list[Run]:
    """Return the runs in which other programs used more than a tenth of the cores."""
    return [run for run in runs if run.taken_cores > _BUSY * cores]


def busy_note(runs: Sequence[Run], cores: int) -> str:
    """Return a warning if other programs used the machine during runs; otherwise return ""."""
    if not (busy := busy_runs(runs, cores)):
        return ""
    most = max(run.taken_cores for run in busy)
    return (
        f"The machine was busy: in {len(busy)} of {counted(len(runs), 'run')} other programs, or "
        f"other guests of its host, used up to {most:.1f} of {counted(cores, 'core')}. The "
        "figures are unreliable: stop other programs, and tune again."
    )


def _format_range(value: float, ends: tuple[float, float]) -> str:
    """Format a median; if it is from several values, add their range."""
    text, (low, high) = f"{value:.1f}", (f"{end:.1f}" for end in ends)
    return text if low == high else f"{text} ({low}-{high})"


def _batches(setting: Setting) -> str:
    if not setting.max_batch:
        return "-"
    waited = f", {setting.delay_us / 1e3:g} ms" if setting.delay_us else ""
    return f"{setting.max_batch}{waited}"


def setting_title(titles: Mapping[int, str], setting: Setting) -> str:
    """Return a title for a setting, such as "openvino int8, 4 cores for 2"."""
    parts = [titles[setting.version]]
    if setting.threads:
        parts.append(f"{setting.threads} cores for {setting.streams}")
    if setting.max_batch > 1:
        parts.append(f"batches of {_batches(setting)}")
    return ", ".join(parts)
