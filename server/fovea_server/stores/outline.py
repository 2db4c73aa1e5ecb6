"""The outline of a repository in a store: its folders, with nothing but the files that describe."""

from __future__ import annotations

from pathlib import Path

from fovea_engines.repository.card import CARD_FILE
from fovea_preprocess.errors import InvalidModel
from fovea_server.stores.address import Address
from fovea_server.stores.store import Store


def outline(address: Address, folder: Path) -> None:
    """Copy the cards and configurations of a store; in the place of other files are empty ones.

    Raises:
        InvalidModel: a model's keys cannot be paths.
        NotFound, Unavailable, InvalidOption: as `Store`.
    """
    store = Store(address)
    for model in store.models():
        if model.problem:
            raise InvalidModel(f"model {model.name} of {address}: {model.problem}")
        for file in model.files:
            path = folder / file.key
            path.parent.mkdir(parents=True, exist_ok=True)
            describes = path.name == CARD_FILE or path.suffix == ".pbtxt"
            path.write_bytes(b"".join(store.read(file)) if describes else b"")
