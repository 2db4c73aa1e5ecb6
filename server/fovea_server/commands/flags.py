"""A flag for every setting of the server, under the name that Triton gives it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from enum import EnumMeta
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from fovea_server.commands.triton_flags import REFUSED, RENAMED, WITHOUT_EFFECT, flag
from fovea_server.settings import Settings

OTHER_NAMES = {
    "model_repository": "--model-store",
    "http_address": "--host",
    "http_port": "--port",
}
METAVARS: dict[Any, str] = {bool: "true|false", int: "INTEGER", float: "NUMBER", Path: "PATH"}


def with_flags(
    command: Callable[..., None],
    settings: Iterable[str] = tuple(Settings.model_fields),
    hidden: Iterable[str] = (*WITHOUT_EFFECT, *REFUSED, *RENAMED),
) -> Callable[..., None]:
    """Give a command an option for each of the settings, where typer looks for them.

    The options collect text, None where a flag was not given; `Settings` alone judges it.

    Args:
        command: what takes the options as keyword arguments (`**given`).
        settings: names of the settings.
        hidden: names of flags that the help does not show.
    """
    parameters = [
        *inspect.signature(command, eval_str=True).parameters.values(),
        *(_setting(name, Settings.model_fields[name]) for name in settings),
        *(_parameter(name, str, typer.Option(flag(name), hidden=True)) for name in hidden),
    ]
    parameters = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _setting(name: str, field: FieldInfo) -> inspect.Parameter:
    option = typer.Option(
        *filter(None, (flag(name), OTHER_NAMES.get(name))),
        metavar=_metavar(field.annotation),
        help=field.description,
        show_default=_default(field),
    )
    return _parameter(name, list[str] if takes_many(name) else str, option)


def takes_many(setting: str) -> bool:
    """Whether the flag of a setting may be repeated, and each time adds a value."""
    return get_origin(Settings.model_fields[setting].annotation) is tuple


def _parameter(name: str, kind: Any, declared: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, declared],
    )


def _metavar(kind: Any) -> str:
    if isinstance(kind, UnionType) or get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return "|".join(kind) if isinstance(kind, EnumMeta) else METAVARS.get(kind, "TEXT")


def _default(field: FieldInfo) -> str | bool:
    """The default as the help shows it; False where there is nothing to show."""
    if field.default_factory is not None:
        return False
    default = field.get_default()
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return " ".join(map(str, default)) or False
    return str(default) if default not in (None, "") else False
