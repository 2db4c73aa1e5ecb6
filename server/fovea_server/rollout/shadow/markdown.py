"""Writes the report of a shadow as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fovea_server.rollout.shadow.documents import ShadowDocument, ShadowFigures, ShadowReport

_NONE = "-"


def markdown(shadow: ShadowDocument) -> str:
    """Write it, with links to the pictures of the worst images."""
    lines = [
        f"# {shadow.model}: version {shadow.version} beside version {shadow.against}",
        "",
        headline(shadow),
        "",
    ]
    if (report := shadow.report) is not None:
        lines += _report(report)
    return "\n".join(lines).rstrip() + "\n"


def headline(shadow: ShadowDocument) -> str:
    """Say in one line how it is and how much differs."""
    said = f"{shadow.state}: {shadow.reason}" if shadow.reason else shadow.state
    skipped = ", ".join(f"{count:,} {why}" for why, count in shadow.skipped.items())
    report = shadow.report
    if report is None:
        return f"{said}; it has seen no image yet, as they come with requests ({skipped} left out)"
    differs = "nothing to compare"
    if report.disagreement is not None and report.interval is not None:
        low, high = report.interval
        differs = f"{report.disagreement:.2%} differ ({low:.2%} to {high:.2%})"
    failed = f", {report.failed:,} failed ({report.error})" if report.failed else ""
    return f"{said}; {report.images:,} images, {differs}; left out: {skipped}{failed}"


def stalled(before: ShadowDocument, now: ShadowDocument) -> str:
    """Say why nothing was compared for a while, and what to do."""
    name = now.model
    if now.state == "starting":
        return (
            f"version {now.version} is still being opened, in time that nothing else on the server "
            "wants: wait for less load"
        )
    if now.skipped != before.skipped:
        return (
            "every image was left out, since requests waited, or the candidate was at work: wait "
            f"for less load, or try version {now.version} on another machine with `fovea diff`"
        )
    text = (
        f"no image comes: it sees requests with images to {name} that name no version, or version "
        f"{now.against}. Send some, to /v1/models/{name}/predict. Ctrl-C leaves the shadow "
        f"running, and `fovea shadow {name} --stop` ends it"
    )
    if left_out := sum(now.skipped.values()):
        text += f"; {left_out:,} were left out before, as requests waited: send one at a time"
    return text


def _report(report: ShadowReport) -> Iterable[str]:
    if report.shared is not None:
        yield f"Results are alike to {report.shared:.4f} in the mean (1: the same)."
        yield ""
    if report.classes:
        overlap = report.overlap_of or "overlap"
        yield from _table("all", {"all": report.all}, overlap)
        yield from _table("class", report.classes, overlap)
    if report.sizes:
        yield from _table("size", report.sizes, report.overlap_of)
    if report.changes:
        yield from ("| live | candidate | things |", "|---|---|---|")
        yield from (f"| {one.live} | {one.candidate} | {one.count} |" for one in report.changes)
        yield ""
    if report.worst:
        yield from ("| worst image | missed | extra | request |", "|---|---|---|---|")
        differing = [one for one in report.worst if one.missed or one.extra]
        for one in differing or report.worst:
            link = f"[{one.picture}](worst/{one.picture})"
            yield f"| {link} | {one.missed} | {one.extra} | {one.request_id} |"
        yield ""


def _table(what: str, rows: Mapping[str, ShadowFigures], overlap: str) -> Iterable[str]:
    yield f"| {what} | live finds | missed | extra | {overlap} | score |"
    yield "|---|---|---|---|---|---|"
    for name, row in rows.items():
        counts = f"{row.objects} | {row.missed} | {row.extra}"
        means = f"{_number(row.overlap, '{:.3f}')} | {_number(row.score_drift, '{:+.3f}')}"
        yield f"| {name} | {counts} | {means} |"
    yield ""


def _number(value: float | None, form: str) -> str:
    return _NONE if value is None else form.format(value)
