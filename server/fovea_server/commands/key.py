"""`fovea key`: the keys that `fovea serve --keys FILE` asks for."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from fovea_preprocess.errors import InvalidOption, NotFound
from fovea_server.commands.command import Command
from fovea_server.keys.key import SCOPES, Key, Secret, digest_of, new_token, parse_span
from fovea_server.keys.key_file import change_keys, read_keys

program = typer.Typer(
    name="key", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)

_File = Annotated[
    Path,
    typer.Option(
        "--keys", metavar="FILE", dir_okay=False, envvar="FOVEA_KEYS_FILE", help="File of the keys."
    ),
]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Who has the key; it is no secret.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
_FILE = Path("keys.json")


@program.callback()
def key() -> None:
    """Make, list, replace and remove the keys of a server.

    A server that was started with --keys FILE follows the file: no restart is needed.
    """


@program.command(cls=Command)
def add(
    name: _Name,
    file: _File = _FILE,
    scope: Annotated[
        str,
        typer.Option(
            metavar=f"{'|'.join(SCOPES)}",
            help="What it lets one do, several with commas: predict asks models to infer, control "
            "loads models and changes settings, metrics reads the metrics.",
        ),
    ] = "predict",
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Only for models of these names, as cam-*; may be repeated."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="N/s|N/m|N/h", help="Most images: 20/s. Others wait (429)."),
    ] = None,
    quota: Annotated[
        str | None,
        typer.Option(
            metavar="N/hour|N/day|N/month", help="Most images in a period of UTC: 1e6/day."
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="It holds for so long: 90d, 12h, 30m.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Make a key, and print it: it is shown this once, and the file keeps its SHA-256 alone.

    Example: fovea key add gate-camera --model 'cam-*' --rate 20/s --expires 90d
    """
    now, token = _now(), new_token()
    given = {
        "name": name,
        "secrets": [{"sha256": digest_of(token)}],
        "scopes": [each.strip() for each in scope.split(",")],
        "models": model or [],
        "rate": rate,
        "quota": quota,
        "created": now,
        "expires": None if expires is None else now + _span(expires),
    }
    try:
        made = Key.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = first["msg"].removeprefix("Value error, ")
        raise InvalidOption(f"{first['loc'][0]}: {reason}") from None

    def with_it(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        if any(each.name == name for each in keys):
            raise InvalidOption(
                f"{file} has a key {name!r}: rotate or remove that, or take another name"
            )
        return (*keys, made)

    change_keys(file, with_it)
    _show_token(file, name, token, as_json)


@program.command(cls=Command)
def rotate(
    name: _Name,
    file: _File = _FILE,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="The key from before holds for so long yet.")
    ] = "1d",
    as_json: _Json = False,
) -> None:
    """Replace a key by a new one, and print that; both hold until the time of grace is over.

    Example: fovea key rotate gate-camera --grace 2h
    """
    token, until = new_token(), _now() + _span(grace)

    def rotated(found: Key) -> Key:
        before = tuple(
            secret.model_copy(update={"until": min(secret.until or until, until)})
            for secret in found.secrets
            if secret.until is None or secret.until > _now()
        )
        return found.model_copy(update={"secrets": (Secret(sha256=digest_of(token)), *before)})

    change_keys(file, _replacing(file, name, lambda found: (rotated(found),)))
    _show_token(file, name, token, as_json)


@program.command(cls=Command)
def rm(name: _Name, file: _File = _FILE) -> None:
    """Remove a key: a running server refuses it within a second or two.

    Example: fovea key rm gate-camera
    """
    change_keys(file, _replacing(file, name, lambda found: ()))
    typer.echo(f"{name} is removed from {file}.")


@program.command(cls=Command)
def ls(file: _File = _FILE, as_json: _Json = False) -> None:
    """List the keys of a file, without the keys themselves, which nobody knows.

    Example: fovea key ls --json
    """
    if not file.exists():
        raise NotFound(f"there is no {file}: `fovea key add NAME --keys {file}` makes it")
    try:
        keys = read_keys(file).keys
    except ValueError as error:
        raise InvalidOption(f"{file} is no file of keys ({error})") from None
    if as_json:
        shown = [each.model_dump(mode="json", exclude={"secrets"}) for each in keys]
        typer.echo(json.dumps(shown, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("name", "scopes", "models", "rate", "quota", "created", "expires"):
        table.add_column(title, overflow="fold")
    now = _now()
    for each in keys:
        models, scopes = ", ".join(each.models) or "all", ", ".join(each.scopes)
        ends = "never" if each.expires is None else f"{each.expires:%Y-%m-%d %H:%M}"
        over = " (over)" if each.is_expired(now) else ""
        limits = each.rate or "", each.quota or ""
        table.add_row(each.name, scopes, models, *limits, f"{each.created:%Y-%m-%d}", ends + over)
    Console().print(table)


def _replacing(
    file: Path, name: str, make: Callable[[Key], tuple[Key, ...]]
) -> Callable[[tuple[Key, ...]], tuple[Key, ...]]:
    """Make the change that puts what `make` returns in the place of a key."""

    def change(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        if all(each.name != name for each in keys):
            known = ", ".join(each.name for each in keys) or "none"
            raise NotFound(f"{file} has no key {name!r}; its keys are {known}")
        return tuple(new for each in keys for new in (make(each) if each.name == name else (each,)))

    return change


def _show_token(file: Path, name: str, token: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"name": name, "key": token}, indent=2))
        return
    typer.echo(f"The key of {name} is in {file} as its SHA-256; it is shown this once:", err=True)
    typer.echo(token)


def _span(text: str) -> timedelta:
    try:
        return parse_span(text)
    except ValueError as error:
        raise InvalidOption(str(error)) from None


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
