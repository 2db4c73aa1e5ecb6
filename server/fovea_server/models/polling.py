"""Polls the repositories: loads new and changed models, and unloads removed ones."""

from __future__ import annotations

import logging

from fovea_preprocess.errors import FoveaError
from fovea_server.models.loader import Loader
from fovea_server.models.repositories import Repositories

log = logging.getLogger(__name__)


def poll(loader: Loader, repositories: Repositories, startup: set[str]) -> None:
    """Poll the repositories once. Never raises: a fault is logged, and kept with its model.

    A model that failed to load is tried again when it has changed.

    Args:
        loader: loads and unloads.
        repositories: to poll.
        startup: models that decide if the server is ready; removed ones are taken out.
    """
    try:
        _follow(loader, repositories, startup)
    except (FoveaError, OSError) as error:
        log.error("a repository cannot be read: %s", error)
    except Exception:  # one failed poll must not end polling
        log.exception("the repositories could not be followed")


def _follow(loader: Loader, repositories: Repositories, startup: set[str]) -> None:
    there = repositories.models()
    startup.intersection_update(there)
    for name in set(loader.slots).difference(there):
        if loader.slots[name].wanted:
            log.info("model %s has left the repository", name)
            loader.unload(name)
    loader.load_all(name for name in there if _changed(loader, name))
    loader.rebuild()


def _changed(loader: Loader, name: str) -> bool:
    slot = loader.slots.get(name)
    if slot is None:
        return True
    try:
        return slot.tried != loader.read(name)
    except FoveaError as error:
        return slot.fault != str(error)
