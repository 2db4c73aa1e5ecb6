"""Finds extensions of Fovea in installed packages, through the entry points in their metadata."""

from __future__ import annotations

import logging
from enum import StrEnum
from functools import cache
from importlib import metadata
from typing import Protocol

from fovea_preprocess.errors import Unavailable

log = logging.getLogger(__name__)

_OWN = "fovea-serve"
_SERVICE = (
    "run that code as a separate service that sends requests to this server with fovea-client"
)
_ALONE = "Fovea uses its own code instead"
# Entry point group of version 0.1 that Fovea no longer reads -> replacement of the group.
_REMOVED = {
    "fovea.abilities": _ALONE,
    "fovea.checks": _ALONE,
    "fovea.commands": "make it a script of that package",
    "fovea.doors": "use --keys for API keys, or --jwt-issuer for tokens",
    "fovea.folders": _ALONE,
    "fovea.labels": _ALONE,
    "fovea.parts": _SERVICE,
    "fovea.quantisers": _ALONE,
    "fovea.routers": _SERVICE,
    "fovea.services": _SERVICE,
    "fovea.stores": "mount the store, or copy the models into a folder",
}


class Group(StrEnum):
    """An entry point group that other packages can fill.

    `BACKENDS`: an entry is the name of a backend = its `Backend` object.
    `HEADS`: an entry is any name = a subclass of `Head`, or a tuple of subclasses, one for each
        head family.
    """

    BACKENDS = "fovea.backends"
    HEADS = "fovea.heads"


@cache
def entry_points(group: Group) -> dict[str, metadata.EntryPoint]:
    """Return the entry points of other packages by name, without importing them.

    If two packages use the same name, the package that is first in alphabetical order keeps it.
    """
    found: dict[str, metadata.EntryPoint] = {}
    for point in sorted(_list_foreign(group), key=lambda one: (_package(one), one.name)):
        if (first := found.setdefault(point.name, point)) is not point:
            log.warning(
                "%s: %r of %s is ignored, because %s uses the same name",
                group,
                point.name,
                _package(point),
                _package(first),
            )
    return found


def load(group: Group, name: str) -> object:
    """Import an entry point that `entry_points` returned.

    Raises:
        Unavailable: the entry point cannot be imported.
    """
    point = entry_points(group)[name]
    try:
        return point.load()
    except Exception as error:  # importing a package can raise anything
        raise Unavailable(
            f"{describe_entry(point)} cannot be imported ({type(error).__name__}: {error}): "
            "install that package again, or remove it"
        ) from error


def broken_entries() -> list[str]:
    """Import the entry points of all other packages, and describe the ones that fail."""
    broken = []
    for group in Group:
        for name in entry_points(group):
            try:
                load(group, name)
            except Unavailable as error:
                broken.append(f"{group}: {error}")
    return broken


def describe_entry(point: metadata.EntryPoint) -> str:
    """Return the name of an entry point, with the name and version of its package."""
    return f"{point.name!r} of {_package(point)}"


def removed_tables() -> list[str]:
    """Describe the entry points of other packages in groups that Fovea does not read any more."""
    return [
        f"{_package(point)} adds {point.name!r} to {group}, which Fovea no longer reads: {instead}"
        for group, instead in _REMOVED.items()
        for point in _list_foreign(group)
    ]


def extending_packages() -> frozenset[str]:
    """Return the names of all Python packages that extend Fovea."""
    points = (point for group in Group for point in entry_points(group).values())
    return frozenset(point.module.partition(".")[0] for point in points)


def _list_foreign(group: str) -> list[metadata.EntryPoint]:
    """List the entry points of a group. Entry points of Fovea's own older versions are left out."""
    points = _all().select(group=group)
    return [point for point in points if not _package(point).startswith(f"{_OWN} ")]


class _Selectable(Protocol):
    """The result type of `metadata.entry_points`, which Python 3.12 renamed."""

    def select(self, *, group: str) -> metadata.EntryPoints: ...


@cache
def _all() -> _Selectable:
    """Return the entry points of all packages. The list is cached, because reading takes 25 ms."""
    return metadata.entry_points()


def _package(point: metadata.EntryPoint) -> str:
    return "a package" if point.dist is None else _title(point.dist)


@cache
def _title(package: metadata.Distribution) -> str:
    """Return the name and version of a package.

    The text is cached, because each access to the metadata parses a file.
    """
    return f"{package.name} {package.version}"
