"""`fovea key`: edits the file of keys that `fovea serve --keys FILE` requires."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from fovea_preprocess.errors import InvalidOption, NotFound
from fovea_server.auth.key import (
    SCOPES,
    Key,
    Secret,
    change_keys,
    digest_of,
    new_token,
    parse_span,
    read_keys,
)
from fovea_server.auth.quota import Quota, usage_of, used_now
from fovea_server.cli.command import Command, Group

_FLAGS = {field: f"--{field.removesuffix('s')}" for field in ("scopes", "models", "rate", "quota")}

program = typer.Typer(
    name="key",
    cls=Group,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_File = Annotated[
    Path,
    typer.Option(
        "--keys",
        metavar="FILE",
        dir_okay=False,
        envvar="FOVEA_KEYS_FILE",
        help="Key file: the same file as for `fovea serve --keys`.",
    ),
]
_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help=(
            "Name of the key, for example its user. The name is not secret; it appears in logs and "
            "metrics."
        ),
    ),
]
_Json = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON document instead of text.")
]
_Scope = Annotated[
    list[str] | None,
    typer.Option(
        metavar="|".join(SCOPES),
        help=(
            "Permissions of the key, separated by commas: predict (run models), control (load "
            "models, change settings), metrics (read metrics), capture (the server may store "
            "images that are sent with this key), cameras (watch streams and events). Default for "
            "a new key: predict."
        ),
    ),
]
_Model = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help=(
            "Models that the key may use: names or patterns such as cam-*, separated by commas. "
            "Default for a new key: all models."
        ),
    ),
]
_Rate = Annotated[
    str | None,
    typer.Option(
        metavar="N/s|N/m|N/h",
        help=(
            "Largest number of images per second, minute or hour, e.g. 20/s. The server rejects "
            "further images with status 429 and a Retry-After header. Default for a new key: no "
            "limit."
        ),
    ),
]
_Quota = Annotated[
    str | None,
    typer.Option(
        metavar="N/hour|N/day|N/month",
        help=(
            "Largest number of images per calendar hour, day or month (UTC), e.g. 1e6/day. "
            "Default for a new key: no limit."
        ),
    ),
]
_Expires = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help=(
            "Time from now until the key expires, in days, hours, minutes or seconds, e.g. 90d, "
            "12h, 30m or 10s. Default for a new key: never."
        ),
    ),
]
_FILE = Path("keys.json")


@program.callback()
def key() -> None:
    """Make, list, change, replace and remove the keys of a server.

    The keys are in a file. A server that was started with --keys FILE reads changes of this file
    without a restart.
    """


@program.command(cls=Command)
def add(
    name: _Name,
    file: _File = _FILE,
    scope: _Scope = None,
    model: _Model = None,
    rate: _Rate = None,
    quota: _Quota = None,
    expires: _Expires = None,
    as_json: _Json = False,
) -> None:
    """Make a key, and print it.

    The key is printed only once, because the file stores only its SHA-256.

    Example: fovea key add gate-camera --model 'cam-*' --rate 20/s --expires 90d
    """
    token = new_token()
    about = {"name": name, "secrets": [{"sha256": digest_of(token)}], "created": _now()}
    given = _given_fields(scope or ["predict"], model, rate, quota, expires)
    made = _make_key({**about, **given})

    def with_it(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        if any(each.name == name for each in keys):
            raise InvalidOption(
                f"{file} already has a key {name!r}: rotate, change or remove it, or choose "
                "another name"
            )
        return (*keys, made)

    change_keys(file, with_it)
    _show_token(file, name, token, as_json)


@program.command("set", cls=Command)
def set_(
    name: _Name,
    file: _File = _FILE,
    scope: _Scope = None,
    model: _Model = None,
    rate: _Rate = None,
    quota: _Quota = None,
    expires: _Expires = None,
    as_json: _Json = False,
) -> None:
    """Change the permissions of a key.

    The key itself stays the same. Options that are not given do not change. An empty value ("")
    removes a limit.

    Example: fovea key set gate-camera --rate 50/s --expires 90d
    """
    given = _given_fields(scope, model, rate, quota, expires)
    if model == [""]:
        given["models"] = ()
    if not given:
        raise InvalidOption("nothing to change: add --scope, --model, --rate, --quota or --expires")
    changed = _replace_key(file, name, lambda found: _make_key({**dict(found), **given}))
    assert changed is not None
    typer.echo(_json(changed) if as_json else f"Changed the key {name} in {file}.")


@program.command(cls=Command)
def rotate(
    name: _Name,
    file: _File = _FILE,
    grace: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time from now for which the old key stays valid, e.g. 0s, 1h or 7d.",
        ),
    ] = "1d",
    expires: _Expires = None,
    as_json: _Json = False,
) -> None:
    """Replace a key, and print the new one.

    The old key stays valid for the time of --grace.

    Example: fovea key rotate gate-camera --grace 2h
    """
    token, now = new_token(), _now()
    until, given = now + _span(grace, least=0), _given_fields(None, None, None, None, expires)

    def rotated(found: Key) -> Key:
        before = tuple(
            secret.model_copy(update={"until": min(secret.until or until, until)})
            for secret in found.secrets
            if secret.until is None or secret.until > now
        )
        secrets = (Secret(sha256=digest_of(token)), *before)
        made = _make_key({**dict(found), "secrets": secrets, **given})
        if made.is_expired(now):
            raise InvalidOption(f"the key {name!r} has expired: set a new time with --expires")
        return made

    _replace_key(file, name, rotated)
    _show_token(file, name, token, as_json)


@program.command(cls=Command)
def rm(name: _Name, file: _File = _FILE, as_json: _Json = False) -> None:
    """Remove a key.

    A running server rejects the key within two seconds.

    Example: fovea key rm gate-camera
    """
    _replace_key(file, name, lambda _: None)
    typer.echo(json.dumps({"removed": name}) if as_json else f"Removed the key {name} from {file}.")


@program.command(cls=Command)
def ls(file: _File = _FILE, as_json: _Json = False) -> None:
    """List the keys of a file, with their permissions and used quotas.

    The used quotas are from the file FILE.used, which a server writes every two seconds.

    Example: fovea key ls --json
    """
    _check_there(file)
    try:
        keys = read_keys(file).keys
    except ValueError as error:
        raise InvalidOption(f"{file} is not a valid key file ({error})") from None
    if as_json:
        typer.echo(f"[{','.join(map(_json, keys))}]")
        return
    from rich.console import Console
    from rich.table import Table

    table, now = Table(box=None, pad_edge=False), _now()
    for title in ("name", "scopes", "models", "rate", "quota", "created", "expires"):
        table.add_column(title, no_wrap=True)
    for each in keys:
        models, scopes = ",".join(each.models) or "all", ",".join(each.scopes)
        ends = "never" if each.expires is None else f"{each.expires:%Y-%m-%d %H:%M}"
        ends += " (expired)" if each.is_expired(now) else ""
        if graces := [one.until for one in each.secrets if one.until and one.until > now]:
            ends += f"; old key: {max(graces):%Y-%m-%d %H:%M}"
        limits = each.rate or "", _shown_quota(file, each)
        table.add_row(each.name, scopes, models, *limits, f"{each.created:%Y-%m-%d}", ends)
    # Each key takes one line of the table, even if the terminal is narrower.
    Console(width=1000).print(table)


def _shown_quota(file: Path, key: Key) -> str:
    if key.quota is None:
        return ""
    used = used_now(usage_of(file), key.name, Quota.parse(key.quota))
    return key.quota if used is None else f"{key.quota} ({used:,} used)"


def _json(key: Key) -> str:
    before = [one.until for one in key.secrets if one.until is not None]
    until = max(before).isoformat() if before else None
    about = key.model_dump(mode="json", exclude={"secrets"})
    return json.dumps(about | {"previous_until": until})


def _given_fields(
    scope: list[str] | None,
    model: list[str] | None,
    rate: str | None,
    quota: str | None,
    expires: str | None,
) -> dict[str, object]:
    """Return the fields of a key that the typed options set.

    An option with an empty value removes its field.
    """
    given: dict[str, object] = {}
    if scope is not None:
        given["scopes"] = tuple(dict.fromkeys(_parts(scope)))
    if model is not None:
        given["models"] = tuple(_parts(model))
    given |= {
        field: text or None
        for field, text in (("rate", rate), ("quota", quota))
        if text is not None
    }
    if expires is not None:
        given["expires"] = _now() + _span(expires) if expires else None
    return given


def _parts(texts: list[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",")]


def _make_key(fields: dict[str, object]) -> Key:
    try:
        return Key.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0])
        option = _FLAGS.get(field, field.upper())
        if first["type"] == "value_error":
            raise InvalidOption(f"{option}: {first['ctx']['error']}") from None
        must = re.sub("^(Input|String) should", "it must", first["msg"])
        raise InvalidOption(f"{option} is {first['input']!r}; {must}") from None


def _check_there(file: Path) -> None:
    if not file.exists():
        raise NotFound(
            f"{file} does not exist. If a server still uses its keys, restore the file: a new "
            f"file replaces all keys. Otherwise `fovea key add NAME --keys {file}` creates it"
        )


def _replace_key(file: Path, name: str, make: Callable[[Key], Key | None]) -> Key | None:
    """Replace a key by the result of `make`, and return this result.

    If `make` returns None, the key is removed.
    """
    _check_there(file)
    made: list[Key] = []

    def change(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        if all(each.name != name for each in keys):
            known = ", ".join(each.name for each in keys)
            raise NotFound(f"{file} has no key {name!r}; its keys are {known or 'none'}")
        new = [make(each) if each.name == name else each for each in keys]
        made.extend(each for each in new if each is not None and each.name == name)
        return tuple(each for each in new if each is not None)

    change_keys(file, change)
    return made[0] if made else None


def _show_token(file: Path, name: str, token: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"name": name, "key": token}, indent=2))
        return
    typer.echo(
        f"The new key of {name}, shown only once ({file} stores only its SHA-256):", err=True
    )
    typer.echo(token)


def _span(text: str, *, least: int = 1) -> timedelta:
    try:
        return parse_span(text, least=least)
    except ValueError as error:
        raise InvalidOption(str(error)) from None


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
