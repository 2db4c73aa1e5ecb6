"""Lists the families that are decoded: the core's, and those that packages add.

A new family needs a file, and a line in the list of its package.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TypeGuard

from fovea_engines.detect.heads.base import Head
from fovea_engines.detect.heads.yolov8 import YoloV8
from fovea_preprocess.entry_points import Group, entry_points, load
from fovea_preprocess.errors import Unavailable

log = logging.getLogger(__name__)

_OWN: tuple[type[Head], ...] = (YoloV8,)
# The entry point of the others that come with Fovea.
_FOVEAS = "fovea"


def _is_family(head: object) -> TypeGuard[type[Head]]:
    return isinstance(head, type) and issubclass(head, Head) and hasattr(head, "family")


class Families(Mapping[str, type[Head]]):
    """The families by name. What packages add is imported at the first look, and not before.

    A package may have its heads in one module with a route, whose imports need this one.
    """

    @cached_property
    def _found(self) -> dict[str, type[Head]]:
        found = {head.family: head for head in _OWN}
        # Without Fovea's own, most models would be taken for tensors that nobody knows.
        for name in {_FOVEAS: None, **entry_points(Group.HEADS)}:
            try:
                added = load(Group.HEADS, name)
            except Unavailable as error:
                if name == _FOVEAS:
                    raise
                log.warning("heads are left out: %s", error)
                continue
            for head in added if isinstance(added, tuple) else (added,):
                if not _is_family(head):
                    log.warning("%r of heads %r is left out: it is no family of heads", head, name)
                elif found.setdefault(head.family, head) is not head:
                    log.warning("head %r of %r is left out: that name is taken", head.family, name)
        return found

    def __getitem__(self, family: str) -> type[Head]:
        return self._found[family]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


FAMILIES = Families()


def is_nameless(family: str | None) -> bool:
    """Return whether the task of a family knows no classes; False of none, and of one not here."""
    return family is not None and family in FAMILIES and FAMILIES[family].nameless
