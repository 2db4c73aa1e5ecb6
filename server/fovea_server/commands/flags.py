"""A flag for every setting of the server, under the name that Triton gives it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from enum import EnumMeta
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from fovea_server.commands.triton_flags import REFUSED, RENAMED, WITHOUT_EFFECT, flag
from fovea_server.settings import Settings

OTHER_NAMES = {
    "model_repository": ("--repository", "--model-store"),
    "http_address": ("--host",),
    "http_port": ("--port",),
}
# Title of each group in the help, and the first of its settings in the order of `Settings`.
GROUPS = {
    "Repository and models": "model_repository",
    "HTTP": "allow_http",
    "gRPC": "allow_grpc",
    "Metrics": "allow_metrics",
    "Shared memory, cache, traces": "allow_client_shm",
    "Log": "log_level",
    "Limits": "max_held_mb",
    "Images by URL": "allow_url",
}
METAVARS: dict[Any, str] = {bool: "true|false", int: "INTEGER", float: "NUMBER", Path: "PATH"}


def with_flags(
    command: Callable[..., None],
    settings: Collection[str] = tuple(Settings.model_fields),
    hidden: Iterable[str] = (*WITHOUT_EFFECT, *REFUSED, *RENAMED),
) -> Callable[..., None]:
    """Give a command an option for each of the settings, where typer looks for them.

    The options collect text, None where a flag was not given; `Settings` alone judges it.

    Args:
        command: what takes the options as keyword arguments (`**given`).
        settings: names of the settings.
        hidden: names of flags that the help does not show.
    """
    titles = {first: title for title, first in GROUPS.items()}
    options: dict[str, list[inspect.Parameter]] = {title: [] for title in GROUPS}
    title = ""
    for name, field in Settings.model_fields.items():
        title = titles.get(name, title)
        if name in settings:
            options[title].append(_setting(name, field, title))
    parameters = [
        *inspect.signature(command, eval_str=True).parameters.values(),
        *chain.from_iterable(options.values()),
        *(_parameter(name, str, typer.Option(flag(name), hidden=True)) for name in hidden),
    ]
    parameters = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _setting(name: str, field: FieldInfo, title: str) -> inspect.Parameter:
    option = typer.Option(
        flag(name),
        *OTHER_NAMES.get(name, ()),
        rich_help_panel=title,
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
