"""Checks, before a version is published, that a server can load it."""

from __future__ import annotations

from pathlib import Path
from typing import Never

from fovea_engines.backends.registry import mismatch
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_preprocess.errors import FoveaError, InvalidModel, NotFound
from fovea_server.models.described import describe_engine
from fovea_server.models.model import ServedModel
from fovea_server.models.opening import open_engine
from fovea_server.models.source import Source
from fovea_server.settings import Settings


def check_servable(folder: Path, version: int) -> None:
    """Load a version of a model's folder as a server does, and close it again.

    An engine for another machine stays closed, and its card is compared with the configuration.

    Raises:
        InvalidModel: it cannot be loaded; the message has the server's reason.
    """
    # The defaults alone: the environment of a build need not be that of its server.
    # The build has run the code of a head already, which its user has named.
    settings = Settings.model_construct(allow_code=True)
    try:
        source = Source.read(folder, folder.name, settings)
        card = EngineCard.read(folder / str(version) / CARD_FILE)
        # With a judge, the build could not open it either: its GPU is not here.
        away = card.judge is not None or mismatch(card) is not None
        opening = describe_engine if away else open_engine
        model = ServedModel(
            version,
            folder / str(version),
            settings,
            source.config,
            _find_none,
            open_engine=opening,
        )
        try:
            model.open()
        finally:
            model.close(0)
    except FoveaError as error:
        # The folder is a temporary one.
        raise InvalidModel(str(error).replace(f"{folder.parent}/", "")) from error


def _find_none(name: str, version: int | None) -> Never:
    raise NotFound(f"no model {name!r} is loaded")
