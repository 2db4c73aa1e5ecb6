"""Defines repositories that are in stores; packages add the kinds of stores."""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from fovea_preprocess.entry_points import Group, entry_points, load
from fovea_preprocess.errors import Unavailable

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class FollowPlan:
    """The options with which a store is pulled.

    Attributes:
        cache: folder that is pulled to.
        most_bytes: limit of what is pulled.
        only: names of the models that are pulled; None for all.
        described: of a version with a card nothing else is pulled.
        every_s: time between two tries.
        polls: it is pulled again and again; else until it has worked once.
    """

    cache: Path
    most_bytes: int
    only: Collection[str] | None
    described: bool
    every_s: float
    polls: bool


class Follower(Protocol):
    """Keeps a local copy of a store up to date, in a thread of its own.

    Attributes:
        started: set once the copy can be served.
        fault: the reason why the store could not be pulled last time; else empty.
    """

    started: threading.Event
    fault: str

    @property
    def folder(self) -> Path:
        """The folder of the copy, a model repository."""

    @property
    def refused(self) -> Mapping[str, str]:
        """Models that could not be taken over as they are in the store, with reasons."""

    @property
    def refused_new(self) -> Mapping[str, str]:
        """The `refused` models that have no earlier content either, with reasons."""

    @property
    def unserved(self) -> list[str]:
        """Models that the first pull refused and that are refused still, with reasons."""

    def connect(self) -> None:
        """Look whether the store can be read, where nothing was pulled from it before.

        Raises:
            NotFound, Unavailable: it cannot be read.
            InvalidOption: it takes packages that are not installed.
        """

    def start(self) -> None:
        """Begin to pull, and return at once."""

    def pull(self) -> None:
        """Pull now; faults are logged."""

    def stop(self) -> None:
        """End what is under way, and let those go on who wait for it."""


class StoreAddress(ABC):
    """The address of a repository in a store; it holds no secrets, so it may be logged."""

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Read an address of the class's schemes; ValueError says what is wrong."""

    @abstractmethod
    def follow(self, plan: FollowPlan) -> Follower:
        """Prepare a local copy; OSError where the folder cannot be written."""


def parse_address(text: str) -> StoreAddress | None:
    """Read the address of a store; None for the path of a folder; ValueError says what is wrong."""
    found = _SCHEME.match(text)
    if found is None:
        return None
    scheme, stores = found[1].lower(), entry_points(Group.STORES)
    if scheme not in stores:
        known = ", ".join(f"{known}://" for known in stores)
        raise ValueError(f"{scheme}:// is no store that is known: use {known}, or a folder")
    try:
        kind: type[StoreAddress] = load(Group.STORES, scheme)
    except Unavailable as error:
        raise ValueError(f"{scheme}:// {error}") from error
    return kind.parse(text)
