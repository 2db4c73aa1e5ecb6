"""`fovea promote` and `fovea rollback`: change the current version of a model."""

from __future__ import annotations

import getpass
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fovea_engines.repository.repository import DEFAULT_REPOSITORY, ModelRepository
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.text import counted
from fovea_server.cli.options import (
    AsJson,
    ModelFolderArgument,
    RepositoryOption,
    UrlOption,
    check_options,
    find_models,
)
from fovea_server.cli.server_client import ServedModelClient, parse_share
from fovea_server.models.config.config_check import validate
from fovea_server.rollout.promotion_documents import (
    DEFAULT_EVENTS,
    MAX_CANARY,
    MAX_EVENTS,
    MIN_CANARY,
    ModelHistory,
    Promotion,
    Rollback,
)
from fovea_server.rollout.record import HistoryRecord

# Timeout in seconds for a promotion. The server responds only after it has loaded the version.
_TIMEOUT_S = 600.0
_SPAN = re.compile(r"(?P<count>\d{1,6})(?P<unit>[smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

_Why = Annotated[
    str,
    typer.Option(
        metavar="TEXT",
        help="Reason for the change. It is stored in the model's history.",
        rich_help_panel="Model and repository",
    ),
]

LimitOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        max=MAX_EVENTS,
        help="Largest number of events that --history lists; older events are left out.",
    ),
]


def promote(
    context: typer.Context,
    model: ModelFolderArgument,
    version: Annotated[
        int, typer.Argument(metavar="VERSION", min=1, help="Number of the version to promote.")
    ],
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    why: _Why = "",
    canary: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help=(
                "Start as a canary: the version first processes only this share of the requests, "
                "from 0.1% to 50%, e.g. 5%. Without this option, it becomes current at once."
            ),
        ),
    ] = None,
    span: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="TIME",
            help=(
                "Time after which a successful canary becomes current, in seconds, minutes, hours "
                "or days, e.g. 30s, 10m, 2h or 1d."
            ),
        ),
    ] = "10m",
    max_p99: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help=(
                "Largest accepted increase of the p99 latency, e.g. +10%: a canary that is slower "
                "than the current version by more is withdrawn."
            ),
            show_default="no limit",
        ),
    ] = None,
    max_disagreement: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help=(
                "Largest accepted share of objects (for a classifier: images) on which the "
                "versions differ, e.g. 2%: a canary with a larger share is withdrawn."
            ),
            show_default="no limit",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a version the current one, at once or as a canary.

    The command writes the promotion into history.jsonl in the model's folder. Running servers apply
    it within a second. With --url, the server first loads the version, and then writes the
    promotion itself.

    The current version responds to requests that name no version. With --canary, the new version
    first processes only a share of these requests. It is withdrawn if it fails more requests than
    the current version, exceeds a limit, or gets too few requests. Otherwise it becomes current.

    Example: fovea promote yolov8n 7 --url http://127.0.0.1:8000 --why "new cameras"

    Example: fovea promote yolov8n 7 --canary 5% --for 10m --max-p99 +10%
    """
    needs = {name: {"canary": ()} for name in ("span", "max_p99", "max_disagreement")}
    check_options(context, needs)
    given = {
        "version": version,
        "canary": parse_share("--canary", canary, MIN_CANARY, MAX_CANARY),
        "seconds": None if canary is None else _seconds(span),
        "max_p99": parse_share("--max-p99", max_p99),
        "max_disagreement": parse_share("--max-disagreement", max_disagreement),
    }
    change = validate(Promotion, {**given, "who": user_name(), "why": why})
    done = _apply_change(context, repository, url, model, change)
    if as_json:
        _print(done)
    elif change.canary is not None:
        typer.echo(
            f"Version {version} of {model} is a canary: it answers {100 * change.canary:g} % of "
            f"the requests that name no version. `fovea versions {model} --history --url "
            f"{url or 'URL'}` shows its progress."
        )
    elif why and (not done.events or done.events[-1].why != why):
        typer.echo(f"Version {version} of {model} is current already: --why was not recorded.")
    else:
        typer.echo(f"Version {version} of {model} is current.")


def rollback(
    context: typer.Context,
    model: ModelFolderArgument,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    why: _Why = "",
    as_json: AsJson = False,
) -> None:
    """Restore the previous version, or stop the canary.

    A version is skipped if it was a canary after it was last current, and the canary was withdrawn.

    Example: fovea rollback yolov8n --url http://127.0.0.1:8000
    """
    change = Rollback(who=user_name(), why=why)
    done = _apply_change(context, repository, url, model, change)
    *_, before, last = done.events
    if as_json:
        _print(done)
    elif before.action == "canary":
        typer.echo(f"The canary ended: version {last.version} of {model} stays current.")
    else:
        typer.echo(
            f"Version {last.version} of {model} is current again, in place of version "
            f"{last.previous}."
        )


def history(
    context: typer.Context,
    model: ModelFolderArgument,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    limit: LimitOption = DEFAULT_EVENTS,
    as_json: AsJson = False,
) -> None:
    """Show a model's history, like `versions --history`. This command will be removed in 0.3."""
    show_history(context, model, repository, url, limit, as_json=as_json)


def show_history(
    context: typer.Context,
    model: str,
    repository: Path,
    url: str | None,
    limit: int,
    *,
    as_json: bool,
) -> None:
    """Print who promoted which version, when and why, and the progress of a canary."""
    if url is not None:
        with ServedModelClient(url, model) as server:
            found = server.ask(ModelHistory, f"history?limit={limit}")
    else:
        found = _read(*_place(context, repository, model), limit)
    if as_json:
        _print(found)
        return
    table = Table("at", "", "version", "before", "who", "why", box=SIMPLE_HEAD)
    for each in found.events:
        action = "build" if each.built else each.action.replace("_", " ")
        row = _time(each.at), action, each.version, each.previous, each.who, each.why
        # Cells are `Text`, not markup, because a reason may contain "[/x]".
        table.add_row(*map(Text, row))
    Console().print(table)
    if found.events and (earlier := found.events[0].number - 1):
        typer.echo(f"not shown: {counted(earlier, 'earlier event')}; raise --limit to list more")
    typer.echo(f"current: {found.current or 'the newest version'}; times are in UTC")
    if (canary := found.canary) is not None:
        typer.echo(
            f"canary {canary.version}: {canary.answered} requests answered, {canary.failed} "
            f"failed, p99 {_ms(canary.p99_ms)}; the current version: {canary.current_answered}, "
            f"{canary.current_failed} failed, p99 {_ms(canary.current_p99_ms)}; decision at "
            f"{_time(canary.until)}"
        )
        if canary.waits_for is not None:
            typer.echo(f"It still needs {canary.waits_for}; otherwise it is rolled back.")


def user_name() -> str:
    """Return the name of the current user, or the user id if the user has no name.

    In pods of OpenShift, users have no names.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _seconds(span: str) -> float:
    if (found := _SPAN.fullmatch(span)) is None:
        raise InvalidOption(
            f"--for is {span!r}, but must be a number with s, m, h or d, such as 10m"
        )
    return float(int(found["count"]) * _UNITS[found["unit"]])


def _print(history: ModelHistory) -> None:
    typer.echo(history.model_dump_json(indent=2, exclude_none=True))


def _place(context: typer.Context, repository: Path, model: str) -> tuple[ModelRepository, str]:
    path = find_models(context, repository, model)[0].absolute()
    models = ModelRepository(path.parent)
    models.latest(path.name)
    return models, path.name


def _apply_change(
    context: typer.Context, repository: Path, url: str | None, model: str, change: Rollback
) -> ModelHistory:
    """Apply a change through a server or in the history file.

    Return the history after the change.
    """
    if url is not None:
        what = "promote" if isinstance(change, Promotion) else "rollback"
        with ServedModelClient(url, model, _TIMEOUT_S) as server:
            return server.ask(ModelHistory, what, "POST", change.model_dump(exclude_none=True))
    models, name = _place(context, repository, model)
    write_change(models, name, change)
    return _read(models, name)


def write_change(models: ModelRepository, name: str, change: Rollback) -> None:
    """Write a change of the current version into the history of a model."""
    with HistoryRecord(models, name) as record:
        if (event := record.event_of(change)) is not None:
            record.append(event, change.who or user_name(), change.why or "")


def _read(models: ModelRepository, name: str, limit: int = DEFAULT_EVENTS) -> ModelHistory:
    history = models.history(name)
    return ModelHistory.of(name, history.events, history.current, limit=limit)
