"""Lists the head families that can be decoded: Fovea's own, and families of other packages."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TypeGuard

from fovea_engines.heads.base import Head
from fovea_engines.heads.families import HEADS
from fovea_preprocess.entry_points import Group, entry_points, load
from fovea_preprocess.errors import Unavailable

log = logging.getLogger(__name__)


def _is_family(head: object) -> TypeGuard[type[Head]]:
    return isinstance(head, type) and issubclass(head, Head) and hasattr(head, "family")


class Families(Mapping[str, type[Head]]):
    """The families by name.

    Other packages are imported at the first look-up of a family, and not at the import of this
    module: the module of a package's head may itself import this module. The head in a user's file
    can be looked up by its name, but iteration does not yield it. It belongs only to the models
    that were built with it, so recognition does not try it on other models.
    """

    def __init__(self) -> None:
        self._in_files: dict[str, type[Head]] = {}

    def add(self, head: type[Head]) -> None:
        """Add the head in a user's file. Its name contains a digest of the file."""
        self._in_files[head.family] = head

    @cached_property
    def _heads(self) -> dict[str, type[Head]]:
        found = {head.family: head for head in HEADS}
        for name in entry_points(Group.HEADS):
            try:
                added = load(Group.HEADS, name)
            except Unavailable as error:
                log.warning("heads cannot be loaded: %s", error)
                continue
            for head in added if isinstance(added, tuple) else (added,):
                if not _is_family(head):
                    log.warning("%r of heads %r is ignored: it is not a Head class", head, name)
                elif found.setdefault(head.family, head) is not head:
                    log.warning(
                        "head %r of %r is ignored: another head has the same name",
                        head.family,
                        name,
                    )
        return found

    def __getitem__(self, family: str) -> type[Head]:
        return self._in_files.get(family) or self._heads[family]

    def __iter__(self) -> Iterator[str]:
        return iter(self._heads)

    def __len__(self) -> int:
        return len(self._heads)


FAMILIES = Families()


def is_nameless(family: str | None) -> bool:
    """Return whether the task of a family has no classes. For an unknown family, return False."""
    return family is not None and family in FAMILIES and FAMILIES[family].nameless
