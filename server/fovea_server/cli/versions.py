"""`fovea versions`: lists the versions of a model or their history, and deletes old versions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fovea_client import Client, FoveaClientError
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.figures import NO_FIGURE
from fovea_engines.repository.repository import DEFAULT_REPOSITORY, ModelRepository
from fovea_preprocess.errors import InvalidModel, InvalidOption, NotFound, Unavailable
from fovea_preprocess.text import counted
from fovea_server.cli.options import (
    AsJson,
    RepositoryOption,
    ServedModelArgument,
    UrlOption,
    check_options,
    find_models,
)
from fovea_server.cli.promote import LimitOption, show_history
from fovea_server.models.config.config_check import validate
from fovea_server.models.model_folder import find_faults
from fovea_server.pipelines.recipe import Pipeline, is_pipeline
from fovea_server.rollout.promotion_documents import DEFAULT_EVENTS, CanaryPlan


@dataclass(frozen=True, slots=True)
class _Version:
    """A version on disk; fields from its card are None if it has no card.

    Attributes:
        version: number of the version.
        created: time of its build.
        backend: backend of the engine.
        precision: precision of the engine.
        size: size of its files in bytes.
        images_per_s: images per second with parallel requests, which the build measured; None if
            the build measured no speed.
        alone_ms: latency in milliseconds of single images, which the build measured; None if the
            build measured no speed.
        served: True if a server loads the version, by config.pbtxt and the history.
        current: True if the version responds to requests that name no version.
        canary: fraction of the requests that the version processes as a canary; None if it is not a
            canary.
        server: state of the version in the server at --url; None if it is not loaded there.
    """

    version: int
    created: datetime | None
    backend: str | None
    precision: str | None
    size: int
    images_per_s: float | None
    alone_ms: float | None
    served: bool
    current: bool
    canary: float | None
    server: str | None


def versions(
    context: typer.Context,
    model: ServedModelArgument,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    url: UrlOption = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Delete old versions, after a confirmation; --keep sets how many stay.",
        ),
    ] = False,
    keep: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Number of newest versions that --prune does not delete."
        ),
    ] = 2,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete without a confirmation.")
    ] = False,
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help=(
                "Show the history instead of the versions: who promoted which version, when and "
                "why."
            ),
        ),
    ] = False,
    limit: LimitOption = DEFAULT_EVENTS,
    as_json: AsJson = False,
) -> None:
    """List the versions of a model, show their history, or delete old ones.

    A server loads the served versions: the newest one, unless config.pbtxt has a version_policy,
    and the current one, which responds to requests that name no version. With --url the table also
    shows the versions that a running server has loaded.

    --prune keeps the newest versions, the served versions, and the versions that the server at
    --url has loaded. Without --url, --prune may delete a version that a running server still uses.

    --history lists promotions, canaries and rollbacks. With --url it also shows the progress of a
    canary.

    Example: fovea versions yolov8n --url http://127.0.0.1:8000

    Example: fovea versions yolov8n --prune --keep 3
    """
    needs = {"keep": {"prune": ()}, "yes": {"prune": ()}, "limit": {"history": ()}}
    check_options(context, needs)
    if history and prune:
        raise InvalidOption("give --history or --prune, not both")
    if history:
        show_history(context, model, repository, url, limit, as_json=as_json)
        return
    if prune and not yes and (as_json or not sys.stdin.isatty()):
        raise InvalidOption(
            "--prune can be confirmed only at a terminal and without --json: add --yes"
        )
    path = find_models(context, repository, model)[0].absolute()
    if (path / CARD_FILE).is_file():  # the directory of a version
        path = path.parent
    if is_pipeline(path):
        _show_pipeline(path, as_json=as_json)
        return
    models, name = ModelRepository(path.parent), path.name
    found = _read(models, name, {} if url is None else _fetch_states(url, name))
    if as_json:
        _print_json(models, name, found, keep if prune else None)
        return
    Console().print(_table(found))
    if prune:
        _prune(models, name, found, keep, sure=yes, loaded_known=url is not None)


def _print_json(
    models: ModelRepository, name: str, found: list[_Version], keep: int | None
) -> None:
    rows = [asdict(one) | {"created": one.created and one.created.isoformat()} for one in found]
    document: dict[str, object] = {"model": name, "versions": rows}
    if keep is not None:
        old = _choose_old(models, name, found, keep)
        _delete(models, name, old)
        numbers = [one.version for one in old]
        document |= {"deleted": numbers, "freed": sum(one.size for one in old)}
    typer.echo(json.dumps(document, indent=2))


def _prune(
    models: ModelRepository,
    name: str,
    found: list[_Version],
    keep: int,
    *,
    sure: bool,
    loaded_known: bool,
) -> None:
    old = _choose_old(models, name, found, keep)
    if not old:
        typer.echo(f"Nothing to delete: all {counted(len(found), 'version')} stay.")
        return
    which, size = ", ".join(str(one.version) for one in old), _megabytes(old)
    typer.echo(f"{'Deleting' if sure else 'To delete:'} {which} ({size}); the others stay.")
    if (target := _rollback_target(models, name, found)) in [one.version for one in old]:
        typer.echo(f"Without version {target}, no earlier version is left for a rollback.")
    if not loaded_known:
        typer.echo(
            "A running server may have loaded these versions: add its --url to keep loaded "
            "versions."
        )
    if sure or typer.confirm("Delete them?"):
        _delete(models, name, old)
        typer.echo(f"Deleted {'version' if len(old) == 1 else 'versions'} {which}: {size} freed.")


def _rollback_target(models: ModelRepository, name: str, found: list[_Version]) -> int | None:
    current = next((one.version for one in found if one.current), None)
    return None if current is None else models.history(name).rollback_target(current)


def _delete(models: ModelRepository, name: str, old: list[_Version]) -> None:
    for one in old:
        models.remove(name, one.version)


def _choose_old(
    models: ModelRepository, name: str, found: list[_Version], keep: int
) -> list[_Version]:
    """Return the versions that may be deleted.

    The newest `keep` versions and the versions in use are kept, and also a version to which a kept
    version is a link.
    """
    old = [one for one in found[:-keep] if not one.served and one.server is None]
    stay = {models.folder(name, one.version).resolve() for one in found if one not in old}
    return [one for one in old if models.folder(name, one.version).resolve() not in stay]


def _show_pipeline(folder: Path, *, as_json: bool) -> None:
    read = Pipeline.read(folder)
    models, reference = read.models, read.reference
    if as_json:
        document = {"model": folder.name, "versions": [], "made_of": models}
        typer.echo(json.dumps(document | {"reference": reference or None}, indent=2))
        return
    typer.echo(
        f"{folder.name} is a pipeline of {', '.join(models)} and has no versions of its own: see "
        f"`fovea versions {models[0]}`"
    )
    if reference:
        typer.echo(f"reference: {reference}")
    for fault in find_faults(folder, None):
        typer.echo(fault)


def _read(models: ModelRepository, name: str, running: dict[str, str]) -> list[_Version]:
    """Read all versions, ascending; raise InvalidModel if config.pbtxt is invalid."""
    models.latest(name)
    served, found = models.served(name), []
    canary = models.history(name).canary
    share = None if canary is None else validate(CanaryPlan, canary).share
    for version in models.versions(name):
        folder, card, speed = models.folder(name, version), None, None
        with suppress(NotFound, InvalidModel):
            card = EngineCard.read(folder / CARD_FILE)
            speed = next((one for one in card.candidates if one.kept), None)
        found.append(
            _Version(
                version=version,
                created=None if card is None else card.created,
                backend=None if card is None else card.backend,
                precision=None if card is None else card.precision,
                size=0 if folder.is_symlink() else _size(folder),
                images_per_s=None if speed is None else speed.images_per_s,
                alone_ms=None if speed is None else speed.alone_ms,
                served=version in served,
                current=version in served[-1:],
                canary=share if canary is not None and version == canary["version"] else None,
                server=running.get(str(version)),
            )
        )
    return found


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _fetch_states(url: str, name: str) -> dict[str, str]:
    """Return the states of a model's versions that a server has loaded, by version."""
    try:
        with Client(url) as client:
            model = next((one for one in client.models() if one.name == name), None)
    except ValueError as error:
        raise InvalidOption(str(error)) from error
    except FoveaClientError as error:
        raise Unavailable(str(error)) from error
    if model is None:
        raise NotFound(
            f"the server {url} has no model {name!r}: check that it serves this repository"
        )
    return {one.version: one.state for one in model.versions if one.state != "UNAVAILABLE"}


def _table(found: list[_Version]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("version", "built", "engine"):
        table.add_column(title, no_wrap=True)
    table.add_column("size", no_wrap=True, justify="right")
    table.add_column("")
    for one in found:
        served = "served" if one.canary is None else f"canary {100 * one.canary:g} %"
        states = ["current" if one.current else served] * one.served
        states += [] if one.server is None else [f"server: {one.server.lower()}"]
        engine = NO_FIGURE if one.backend is None else f"{one.backend} {one.precision}"
        table.add_row(
            str(one.version),
            NO_FIGURE if one.created is None else f"{one.created:%Y-%m-%d}",
            engine,
            _megabytes([one]),
            ", ".join(states),
        )
    return table


def _megabytes(versions: Sequence[_Version]) -> str:
    return f"{sum(one.size for one in versions) / 1e6:.1f} MB"
