"""A flag for every setting of the server, under the name that Triton gives it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import EnumMeta
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from fovea_server.settings import Settings

OTHER_NAMES = {
    "model_repository": "--model-store",
    "http_address": "--host",
    "http_port": "--port",
}
# What is tuned by hand in Triton; who comes with Triton's command line need not edit it.
WITHOUT_EFFECT = (
    "http_thread_count",
    "grpc_infer_allocation_pool_size",
    "pinned_memory_pool_byte_size",
    "cuda_memory_pool_byte_size",
    "buffer_manager_thread_count",
    "backend_directory",
    "cache_directory",
)
METAVARS: dict[Any, str] = {bool: "true|false", int: "INTEGER", float: "NUMBER", Path: "PATH"}


def flag(setting: str) -> str:
    """The flag of a setting: --http-port of http_port."""
    return "--" + setting.replace("_", "-")


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every setting, where typer looks for them.

    The options collect text, None where a flag was not given; `Settings` alone judges it.

    Args:
        command: what takes the options as keyword arguments (`**given`).
    """
    parameters = [
        *inspect.signature(command, eval_str=True).parameters.values(),
        *(_setting(name, field) for name, field in Settings.model_fields.items()),
        *(_parameter(name, str, typer.Option(flag(name), hidden=True)) for name in WITHOUT_EFFECT),
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
    return _parameter(name, list[str] if get_origin(field.annotation) is tuple else str, option)


def _parameter(name: str, kind: Any, declared: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, declared],
    )


def _metavar(kind: Any) -> str:
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]
    return "|".join(kind) if isinstance(kind, EnumMeta) else METAVARS.get(kind, "TEXT")


def _default(field: FieldInfo) -> str | bool:
    """The default as the help shows it; False where there is nothing to show."""
    default = field.get_default()
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if default not in (None, "", ()) else False
