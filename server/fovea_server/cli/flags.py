"""The flags of the server's settings; a flag that Triton also has keeps Triton's name."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import get_close_matches
from enum import EnumMeta
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from fovea_server.cli.command import Command
from fovea_server.cli.triton_flags import REFUSED, RENAMED, WITHOUT_EFFECT
from fovea_server.settings import OTHER_NAMES, Settings, flag, ignored_variables

if TYPE_CHECKING:
    from typer._click import Context

log = logging.getLogger(__name__)

# Title of each group of flags in the help -> the first setting of the group, in the order of
# `Settings`.
GROUPS = {
    "Repository and models": "model_repository",
    "HTTP": "allow_http",
    "gRPC": "allow_grpc",
    "Keys": "keys_file",
    "Metrics": "allow_metrics",
    "Shared memory, cache, traces": "allow_client_shm",
    "Log": "log_level",
    "Limits": "max_inflight_mb",
    "Images by URL": "allow_url",
    "Captures": "capture",
}
_SWITCHES = frozenset(
    flag(name) for name, field in Settings.model_fields.items() if field.annotation is bool
)
_METAVARS: dict[object, str] = {bool: "true|false", int: "INTEGER", float: "NUMBER", Path: "PATH"}


def with_flags(
    command: Callable[..., None],
    settings: Collection[str] = tuple(Settings.model_fields),
    hidden: Iterable[str] = (*WITHOUT_EFFECT, *REFUSED, *RENAMED),
    *,
    listed: bool = True,
) -> Callable[..., None]:
    """Declare a flag for each setting to typer, which passes the values as `**given`.

    The value of a flag is text, or None if the flag is missing; `Settings.from_flags` validates it.
    The help omits flags in `hidden`. It shows the flags of settings only if `listed` is True.
    """
    titles = {first: title for title, first in GROUPS.items()}
    options: dict[str, list[inspect.Parameter]] = {title: [] for title in GROUPS}
    title = ""
    for name, field in Settings.model_fields.items():
        title = titles.get(name, title)
        if name in settings:
            options[title].append(_setting(name, field, title, hidden=not listed))
    return with_parameters(
        command,
        (
            *chain.from_iterable(options.values()),
            *(_parameter(name, str, typer.Option(flag(name), hidden=True)) for name in hidden),
        ),
    )


def _setting(name: str, field: FieldInfo, title: str, *, hidden: bool) -> inspect.Parameter:
    return make_option(
        name,
        field.annotation,
        field.description or name,
        *map(flag, OTHER_NAMES.get(name, ())),
        collects=list[str] if get_origin(field.annotation) is tuple else str,
        rich_help_panel=title,
        show_default=_default(field),
        hidden=hidden,
    )


def with_parameters(
    command: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """Declare parameters to typer, which passes their values as `**given`.

    In the help, these parameters come before the keyword-only parameters of the command.
    """
    own = inspect.signature(command, eval_str=True).parameters.values()
    ordered = sorted((*parameters, *own), key=lambda each: each.kind)
    declared = [each for each in ordered if each.kind is not each.VAR_KEYWORD]
    command.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in declared}
    return command


def make_option(
    name: str, kind: object, description: str, *others: str, collects: type = str, **shown: Any
) -> inspect.Parameter:
    """Make the parameter of an option; typer passes a value of type `collects`, or None.

    Args:
        name: name of the parameter.
        kind: type of the value, for the help.
        description: help text of the option.
        others: other names of the option.
        collects: type of the value that typer passes.
        shown: further arguments of `typer.Option`.
    """
    values = _metavar(kind)
    # The first letter becomes a capital, unless the first word is a name or a value.
    begins = description[0].upper() if re.match(r"[a-z]+,? ", description) else description[0]
    shown = {"metavar": values, "help": f"{begins}{description[1:]}."} | shown
    if "|" in values:
        shown["autocompletion"] = lambda: values.split("|")
    return _parameter(name, collects, typer.Option(flag(name), *others, **shown))


def _parameter(name: str, kind: type, declared: object) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, declared],
    )


def _metavar(kind: object) -> str:
    if isinstance(kind, UnionType) or get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return "|".join(kind) if isinstance(kind, EnumMeta) else _METAVARS.get(kind, "TEXT")


def _default(field: FieldInfo) -> str | bool:
    """Return the default of a setting for the help; return False if the help shows no default."""
    if field.default_factory is not None:
        return False
    default = field.get_default()
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return " ".join(map(str, default)) or False
    return str(default) if default not in (None, "") else False


class SwitchCommand(Command):
    """Accepts a switch without a value, or with a value after "=" or a space, as Triton does.

    The prefix "--no-" sets a switch to false.
    """

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the arguments of the command; see `_with_values`."""
        return super().parse_args(ctx, list(_with_values(args)))


def _with_values(args: list[str]) -> Iterator[str]:
    """Rewrite each switch as --switch=value; all other arguments stay as they are."""
    remaining = [*args, ""]
    while len(remaining) > 1:
        arg = remaining.pop(0)
        switched_off = arg.replace("--no-", "--", 1)
        if switched_off != arg and switched_off in _SWITCHES:
            yield f"{switched_off}=false"
        elif arg not in _SWITCHES:
            yield arg
        elif remaining[0].lower() in ("true", "false", "1", "0"):
            yield f"{arg}={remaining.pop(0)}"
        else:
            yield f"{arg}=true"


def warn_of_ignored_variables() -> None:
    """Log each environment variable that looks like a setting but is unknown, with advice.

    Such a variable is not an error, because a platform (such as Kubernetes) may have set it.
    """
    meant = {name: name for name in Settings.model_fields}
    for name, others in OTHER_NAMES.items():
        meant |= dict.fromkeys(others, name)
    for variable, linked in ignored_variables():
        if linked:
            log.warning(
                "%s is ignored: Kubernetes set it to the address of the Service %s; "
                "set enableServiceLinks: false in the pod's spec",
                variable,
                variable.lower().removesuffix("_port").replace("_", "-"),
            )
            continue
        close = get_close_matches(variable.lower().removeprefix("fovea_"), meant, 1)
        advice = f"did you mean FOVEA_{meant[close[0]].upper()}? " if close else ""
        log.warning(
            "%s is an unknown setting and has no effect: %s`fovea serve --help-all` lists the "
            "settings",
            variable,
            advice,
        )
