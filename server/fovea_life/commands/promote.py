"""`fovea promote`, `fovea rollback`, `fovea history`: the version of a model that is current."""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fovea_engines.commands.options import (
    AsJson,
    RepositoryOption,
    ServedModelArgument,
    UrlOption,
    check_options,
    find_models,
)
from fovea_engines.repository.repository import DEFAULT_REPOSITORY, ModelRepository
from fovea_life.commands.asking import AskedModel
from fovea_life.promotion.plan import CanaryPlan, parse_share, parse_span
from fovea_life.promotion.record import HistoryRecord

# A server answers once it has loaded the version.
_TIMEOUT_S = 600.0

_Why = Annotated[
    str,
    typer.Option(metavar="TEXT", help="For the history.", rich_help_panel="Model and repository"),
]


def promote(
    context: typer.Context,
    model: ServedModelArgument,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Version to promote.")],
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    why: _Why = "",
    canary: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="At first it answers a share of the requests: 5%."),
    ] = None,
    span: Annotated[
        str, typer.Option("--for", metavar="TIME", help="Time until a canary becomes current.")
    ] = "10m",
    max_p99: Annotated[
        str | None,
        typer.Option(
            metavar="PART",
            help="The p99 of a canary may be longer by this: +10%.",
            show_default="any",
        ),
    ] = None,
    max_disagreement: Annotated[
        str | None,
        typer.Option(
            metavar="PART", help="Part of the images with other results: 2%.", show_default="any"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a version of a model current: it answers the requests that name none.

    It is written into history.jsonl in the model's folder, which servers follow within a second.
    With --url a server writes it, once it has loaded the version.

    With --canary the version first answers a share of these requests. It goes back by itself if it
    fails more of them than the current one, or is over a limit, and else becomes current.

    Example: fovea promote yolov8n 7 --url http://127.0.0.1:8000 --why "new cameras"

    Example: fovea promote yolov8n 7 --canary 5% --for 10m --max-p99 +10%
    """
    needs = {name: {"canary": ()} for name in ("span", "max_p99", "max_disagreement")}
    check_options(context, needs)
    share = parse_share("--canary", canary)
    plan = share and CanaryPlan(
        share=share,
        seconds=parse_span("--for", span),
        max_p99=parse_share("--max-p99", max_p99),
        max_disagreement=parse_share("--max-disagreement", max_disagreement),
    )
    if url is not None:
        limits = asdict(plan) if plan else {}
        given = _said(why) | {"version": version, "canary": limits.pop("share", None)} | limits
        done = _asked(url, model, "promote", given)
    else:
        models, name = _found(context, repository, model)
        with HistoryRecord(models, name) as record:
            if (event := record.promotion(version, plan or None)) is not None:
                record.append(event, getpass.getuser(), why)
        done = _read(models, name)
    if as_json:
        typer.echo(json.dumps(done, indent=2))
    elif plan:
        typer.echo(
            f"Version {version} of {model} is a canary: it answers {100 * plan.share:g} % of the "
            f"requests that name no version. `fovea history {model}` tells how it does."
        )
    else:
        typer.echo(f"Version {version} of {model} is current.")


def rollback(
    context: typer.Context,
    model: ServedModelArgument,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    why: _Why = "",
    as_json: AsJson = False,
) -> None:
    """Make the version before current again, or end the canary.

    Example: fovea rollback yolov8n --url http://127.0.0.1:8000
    """
    if url is not None:
        done = _asked(url, model, "rollback", _said(why))
    else:
        models, name = _found(context, repository, model)
        with HistoryRecord(models, name) as record:
            record.append(record.rollback(), getpass.getuser(), why)
        done = _read(models, name)
    if as_json:
        typer.echo(json.dumps(done, indent=2))
    else:
        *_, before, last = done["events"]
        if before["action"] == "canary":
            typer.echo(f"The canary is over: version {last['version']} of {model} stays current.")
        else:
            typer.echo(
                f"Version {last['version']} of {model} is current again, in place of version "
                f"{last['previous']}."
            )


def history(
    context: typer.Context,
    model: ServedModelArgument,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """List which version of a model was made current, by whom and why.

    With --url it also tells how a canary does.

    Example: fovea history yolov8n
    """
    if url is not None:
        found = _asked(url, model, "history")
    else:
        found = _read(*_found(context, repository, model))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table("at", "", "version", "before", "who", "why", box=SIMPLE_HEAD)
    for each in found["events"]:
        at = each["at"][:16].replace("T", " ")
        row = (each[key] for key in ("version", "previous", "who", "why"))
        table.add_row(at, each["action"].replace("_", " "), *row)
    Console().print(table)
    current, running = found.get("current"), found.get("canary")
    typer.echo(f"current: {'the newest version' if current is None else current}; times are of UTC")
    if running is not None and "answered" in running:
        typer.echo(
            f"canary {running['version']}: {running['answered']} requests answered, "
            f"{running['failed']} failed, p99 {_ms(running.get('p99_ms'))}; the current version: "
            f"{running['current_answered']}, {running['current_failed']} failed, p99 "
            f"{_ms(running.get('current_p99_ms'))}; until {running['until'][:16].replace('T', ' ')}"
        )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _said(why: str) -> dict[str, Any]:
    return {"who": getpass.getuser(), "why": why}


def _found(context: typer.Context, repository: Any, model: str) -> tuple[ModelRepository, str]:
    path = find_models(context, repository, model)[0].absolute()
    models = ModelRepository(path.parent)
    models.latest(path.name)
    return models, path.name


def _read(models: ModelRepository, name: str) -> dict[str, Any]:
    """Make the document of a server, as far as the file has it."""
    found = models.history(name)
    keys = ("version", "previous")
    return {
        "model": name,
        **({} if found.current is None else {"current": str(found.current)}),
        **({} if found.canary is None else {"canary": {"version": str(found.canary["version"])}}),
        "events": [{**each, **{key: str(each[key]) for key in keys}} for each in found.events],
    }


def _asked(url: str, name: str, what: str, sent: Mapping[str, Any] | None = None) -> dict[str, Any]:
    with AskedModel(url, name, _TIMEOUT_S) as model:
        return dict(model.ask(what, "GET" if sent is None else "POST", sent).json())
