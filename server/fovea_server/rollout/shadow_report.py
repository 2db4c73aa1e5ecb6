"""The JSON documents of a shadow: the request, its state, and its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from fovea_engines.results.options import PredictOptions
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.text import counted
from fovea_server.settings import Settings
from fovea_server.tensors.messages import SentImage

_NONE = "-"

State = Literal["starting", "running", "finished", "decided", "stopped", "failed"]
OVER = ("finished", "decided", "stopped", "failed")
Verdict = Literal["below", "above", "undecided"]

_ASKED: JsonDict = {"version": 7, "share": 0.1, "images": 1000}
_FIGURES: JsonDict = {
    "objects": 1204,
    "missed": 24,
    "extra": 17,
    "overlap": 0.962,
    "score_drift": -0.004,
}
_REPORT: JsonDict = {
    **{"images": 310, "disagreement": 0.034, "interval": [0.026, 0.045], "overlap_of": "IoU"},
    **{"shared": None, "all": _FIGURES, "classes": {"person": _FIGURES}, "sizes": {}},
    "changes": [{"live": "truck", "candidate": "car", "count": 5}],
    **{"failed": 0, "error": "", "worst": []},
}
_SHADOW: JsonDict = {
    **{"model": "yolov8n", **_ASKED, "against": 6, "state": "running", "reason": ""},
    **{"began": "2026-11-27T20:34:34Z", "skipped": {"waiting": 12, "busy": 0}, "report": _REPORT},
}


@dataclass(frozen=True, slots=True)
class ShadowCandidate:
    """The candidate version to run, and the live version with which it is compared."""

    folder: Path
    model: str
    version: int
    against: int
    task: str
    vocabulary: Vocabulary
    settings: Settings


@dataclass(frozen=True, slots=True)
class LiveImage:
    """A live image with its result; `keep` is True if the image may be stored."""

    image: SentImage
    found: TaskResult
    options: PredictOptions
    request_id: str
    keep: bool


@dataclass(slots=True)
class ShadowProgress:
    """The worker's reply to an image, or to None, which the server sends to request a report."""

    report: ShadowReport | None = None
    pictures: dict[str, bytes] = field(default_factory=dict)


def markdown(shadow: ShadowDocument) -> str:
    """Return the report as Markdown, with links to the drawings of the worst images."""
    lines = [
        f"# {shadow.model}: version {shadow.version} compared with version {shadow.against}",
        "",
        headline(shadow),
        "",
    ]
    if shadow.verdict is not None:
        lines += [_explain_verdict(shadow.verdict, shadow.max_disagreement or 0), ""]
    if (report := shadow.report) is not None:
        lines += _report(report)
    return "\n".join(lines).rstrip() + "\n"


def headline(shadow: ShadowDocument) -> str:
    """Return one line with the state of the shadow and the fraction of differing results."""
    # For these two states the figures contain the reason.
    obvious = not shadow.reason or shadow.state in ("finished", "decided")
    state = shadow.state if obvious else f"{shadow.state} ({shadow.reason})"
    report, compared = shadow.report, "no image was compared"
    if report is not None:
        compared = f"{counted(report.images, 'image')} compared"
        if report.disagreement is not None and report.interval is not None:
            low, high = report.interval
            compared += (
                f", disagreement {report.disagreement:.2%} (95% interval: {low:.2%} to {high:.2%})"
            )
        if report.failed:
            compared += (
                f"; the candidate failed on {counted(report.failed, 'image')} ({report.error})"
            )
    return f"{state}: {compared}{_left_out(shadow.skipped)}"


def _left_out(skipped: Mapping[str, int]) -> str:
    reasons = {"waiting": "because requests waited", "busy": "because the candidate was busy"}
    parts = [
        f"{counted(skipped[key], 'image')} {reason}"
        for key, reason in reasons.items()
        if skipped.get(key)
    ]
    return f"; not compared: {', '.join(parts)}" if parts else ""


def decide(report: ShadowReport | None, limit: float | None) -> Verdict | None:
    """Compare the confidence interval of the disagreement with a limit.

    Returns:
        "undecided" if the interval contains the limit or nothing was compared; None if `limit` is
        None.
    """
    if limit is None:
        return None
    if report is None or report.interval is None:
        return "undecided"
    low, high = report.interval
    return "below" if high < limit else "above" if low > limit else "undecided"


def _explain_verdict(verdict: Verdict, limit: float) -> str:
    if verdict != "undecided":
        return f"Verdict: {verdict} the limit of {100 * limit:g}%."
    return (
        f"Verdict: undecided, because the interval does not exclude the limit of {100 * limit:g}%. "
        "Compare more images (`--images`)."
    )


def explain_stall(before: ShadowDocument, now: ShadowDocument) -> str:
    """Return the reason why no image was compared between two states, with advice."""
    name = now.model
    if now.state == "starting":
        return (
            f"version {now.version} is still loading, because it uses only idle CPU time: wait "
            "until the server has less load"
        )
    if now.skipped != before.skipped:
        return (
            "all images were left out, because requests were waiting or the candidate was busy: "
            f"wait until the server has less load, or test version {now.version} on another "
            "machine with `fovea diff`"
        )
    text = (
        f"no image arrived: the test uses images of requests to {name} without a version, or with "
        f"version {now.against}. Send images to /v1/models/{name}/predict. Ctrl-C leaves the test "
        f"running; `fovea shadow {name} --stop` ends it"
    )
    if left_out := sum(now.skipped.values()):
        text += (
            f"; {left_out:,} images were left out before, because requests were waiting: send one "
            "request at a time"
        )
    return text


def _report(report: ShadowReport) -> Iterable[str]:
    if report.shared is not None:
        yield f"Mean similarity of the results: {report.shared:.4f} (1 means equal)."
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


class ShadowRequest(BaseModel):
    """A request to run a candidate version beside the current version."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_ASKED]})

    version: int = Field(
        ge=1, description="candidate version from the model's directory; it need not be loaded"
    )
    share: float = Field(
        0.1,
        gt=0,
        le=1,
        description="fraction of the live images that the candidate also gets, 0 to 1",
    )
    images: int = Field(
        1000, ge=1, le=1_000_000, description="number of compared images after which the test ends"
    )
    max_disagreement: float | None = Field(
        None,
        gt=0,
        lt=1,
        description=(
            "disagreement, 0 to 1; the test ends early if its result is clearly below or "
            "above this value"
        ),
    )


class ShadowFigures(BaseModel):
    """The comparison of a group of objects; for a classifier, of images."""

    objects: int = Field(description="number of objects that the live version detects")
    missed: int = Field(description="number of objects that only the live version detects")
    extra: int = Field(description="number of objects that only the candidate detects")
    overlap: float | None = Field(
        description="mean overlap of the objects that both versions detect; null if there are none"
    )
    score_drift: float | None = Field(
        description=(
            "mean change of the scores of objects that both versions detect; null if there are none"
        )
    )


class ClassChange(BaseModel):
    """Objects whose class differs between the live version and the candidate."""

    live: str
    candidate: str
    count: int


class ShadowWorst(BaseModel):
    """An image on which the results of the versions differ most."""

    picture: str = Field(
        description="path after .../shadow/worst/ of an image with both results drawn"
    )
    request_id: str
    missed: int
    extra: int
    lost: float = Field(
        description="difference of the results on this image, 0 to 1; the largest comes first"
    )


class ShadowReport(BaseModel):
    """The comparison of both versions so far."""

    images: int = Field(description="number of images that both versions answered")
    disagreement: float | None = Field(
        description=(
            "fraction of objects (for a classifier: of images) on which the versions "
            "differ; for other tasks the difference of the results, 0 to 1; null if there "
            "was nothing to compare"
        )
    )
    interval: list[float] | None = Field(description="limits of the 95 % confidence interval")
    overlap_of: str = Field(
        description=(
            'measure of overlap: "IoU", "mask IoU", "OKS", ...; empty if the task has no objects'
        )
    )
    shared: float | None = Field(
        None, description="mean similarity, for tasks without objects and classes"
    )
    all: ShadowFigures
    classes: dict[str, ShadowFigures]
    sizes: dict[str, ShadowFigures]
    changes: list[ClassChange] = Field(description="differences by class, the most frequent first")
    failed: int = Field(description="number of images on which the candidate failed")
    error: str = Field(description="last error of the candidate; empty if there was none")
    worst: list[ShadowWorst]


class ShadowDocument(ShadowRequest):
    """A shadow, running or ended."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SHADOW]})

    model: str
    against: int = Field(description="the live version")
    state: State
    reason: str = Field(description="reason for the state; empty while the test runs")
    began: datetime
    skipped: dict[str, int] = Field(
        description=(
            'selected images that were not compared, by reason: "waiting" (requests waited), "busy"'
        )
    )
    verdict: Verdict | None = Field(
        None,
        description=(
            'whether the disagreement is below or above max_disagreement; "undecided" if its '
            "interval contains the limit; null while the test runs, if it failed, or without limit"
        ),
    )
    report: ShadowReport | None
