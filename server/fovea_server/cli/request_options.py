"""Declares options of `PredictOptions` as options of a command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from functools import partial
from typing import Any, get_type_hints

from fovea_engines.results.options import PredictOptions
from fovea_server.cli.flags import make_option, with_parameters
from fovea_server.dataplane.options import CLASSES_AS_TEXT, parse_options
from fovea_server.settings import flag

_TYPES = get_type_hints(PredictOptions)
# Metavars in the help, for options whose type and description do not give one.
_METAVARS = {"classes": "CLASS,...", "labels": "TEXT,...", "mask": "FORM", "tile": "SIDE|CxR"}
_DEFAULTS = {"classes": "all", "labels": "none", "tile": "off"}


def with_request_options(
    *names: str, panel: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare these options to typer, which passes the values as `**given`.

    The value of an option that was not typed is None.
    """
    options = [_declare(each, panel) for each in fields(PredictOptions) if each.name in names]
    return partial(with_parameters, parameters=options)


def read_options(given: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of the typed options; raise InvalidOption for a wrong value."""
    texts = {name: text for name, text in given.items() if text is not None}
    options = parse_options(texts)
    return {name: getattr(options, name) for name in texts}


def _declare(option: Field[Any], panel: str | None) -> inspect.Parameter:
    name, kind = option.name, _TYPES[option.name]
    text = CLASSES_AS_TEXT if name == "classes" else option.metadata["description"]
    # The message names other options as they are typed on the command line.
    text = re.sub(r"`(\w+)`", lambda named: flag(named[1]), text)
    text, _, default = text.partition("; default: ")
    default = _DEFAULTS.get(name, default) if option.default is None else str(option.default)
    if "ge" in option.metadata:
        default += f"; {option.metadata['ge']}<=x<={option.metadata['le']}"
    others = ["--texts"] if name == "labels" else []
    shown = {"metavar": _METAVARS[name]} if name in _METAVARS else {}
    return make_option(
        name,
        kind,
        text,
        *others,
        collects=bool if kind is bool else str,
        show_default=False if kind is bool else default or False,
        rich_help_panel=panel,
        **shown,
    )
