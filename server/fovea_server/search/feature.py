"""Searches images by vectors: `POST /v1/models/NAME/search`."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from fovea_server.feature import Feature

if TYPE_CHECKING:
    from fastapi import APIRouter

    from fovea_server.search.index import VectorIndex

# An index of 100,000 vectors of 512 takes 200 MB.
_KEPT = 4


class Search(Feature):
    """Keeps the indexes that were used last in memory."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, int, int], VectorIndex] = OrderedDict()
        self._reading: dict[Path, Lock] = {}
        self._lock = Lock()

    def index(self, folder: Path, name: str) -> VectorIndex:
        """Read an index in the folder of a model, unless it is as it was.

        Raises as `find_index` and `VectorIndex.read`.
        """
        # A start does not wait for what it imports.
        from fovea_server.search.index import VectorIndex, find_index

        path = find_index(folder, name)
        with self._lock:
            reading = self._reading.setdefault(path, Lock())
        # One at a time: a second reader of the same file would take its memory twice.
        with reading:
            file = path.stat()
            key = path, file.st_mtime_ns, file.st_size
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    return self._kept[key]
            made = VectorIndex.read(path)
            with self._lock:
                for other in [each for each in self._kept if each[0] == path]:
                    del self._kept[other]
                self._kept[key] = made
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return made

    def router(self) -> APIRouter:
        """Make the routes."""
        from fovea_server.search.routes import search_routes

        return search_routes(self.index)

    async def stop(self) -> None:
        """Forget the indexes."""
        self._kept.clear()
