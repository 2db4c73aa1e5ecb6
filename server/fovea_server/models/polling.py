"""Follows the repository: what appears or changes is loaded, what disappears is unloaded."""

from __future__ import annotations

import logging

from fovea_engines.repository import ModelRepository
from fovea_preprocess.errors import FoveaError
from fovea_server.models.loader import Loader

log = logging.getLogger(__name__)


def poll(loader: Loader, repository: ModelRepository) -> None:
    """Look at the repository once. Never raises: a fault is logged, and kept with its model.

    What failed to load is tried again when it has changed.
    """
    try:
        there = repository.models()
    except (FoveaError, OSError) as error:
        log.error("the repository cannot be read: %s", error)
        return
    for name in set(loader.slots).difference(there):
        if loader.slots[name].wanted:
            log.info("model %s has left the repository", name)
            loader.unload(name)
    loader.load_all(name for name in there if _changed(loader, name))


def _changed(loader: Loader, name: str) -> bool:
    slot = loader.slots.get(name)
    if slot is None:
        return True
    try:
        return slot.tried != loader.read(name)
    except FoveaError as error:
        return slot.fault != str(error)
