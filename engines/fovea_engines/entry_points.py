"""Finds what installed packages add to Fovea: entry points in their metadata."""

from __future__ import annotations

import logging
from enum import StrEnum
from functools import cache
from importlib import metadata
from typing import Any

log = logging.getLogger(__name__)


class Group(StrEnum):
    """A table that packages extend.

    `BACKENDS`: a name in cards = a `Backend`.
    `COMMANDS`: PANEL.NAME = a function, or a Typer app; panel is a title of `fovea --help`.
    `ROUTERS`: a name of `--api` = a function that takes the model that the operator named, or
    None, and returns an `APIRouter`.
    `STORES`: the scheme of an address = a class of `StoreAddress`.
    """

    BACKENDS = "fovea.backends"
    COMMANDS = "fovea.commands"
    ROUTERS = "fovea.routers"
    STORES = "fovea.stores"


@cache
def entry_points(group: Group) -> dict[str, metadata.EntryPoint]:
    """Return the entry points of a group by name, in order of their names; nothing is imported."""
    return {one.name: one for one in sorted(metadata.entry_points(group=group))}


def loaded(group: Group) -> dict[str, Any]:
    """Import the entry points of a group; one that cannot be imported is logged and left out."""
    found = {}
    for name, point in entry_points(group).items():
        try:
            found[name] = point.load()
        except (ImportError, AttributeError) as error:
            log.warning("%s %r (%s) cannot be used: %s", group, name, point.value, error)
    return found


def extending_packages() -> frozenset[str]:
    """Return the names of all packages that add something."""
    points = (point for group in Group for point in entry_points(group).values())
    return frozenset(point.module.partition(".")[0] for point in points)
