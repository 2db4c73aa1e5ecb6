"""Checks that a server can load a new version, before the version is published."""

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
    """Load a version from a model's directory as a server does, and close it again.

    An engine that was built for another machine is not opened; only its card is compared with the
    configuration.

    Raises:
        InvalidModel: the version cannot be loaded; the message has the reason that a server would
            log.
    """
    # Use the default settings, because the environment of the build may differ from the server's
    # environment. `allow_code` is True, because the build has already run the code of the head,
    # which the user chose.
    settings = Settings.model_construct(allow_code=True)
    try:
        source = Source.read(folder, folder.name, settings)
        card = EngineCard.read(folder / str(version) / CARD_FILE)
        # `judge` is set if the build could not run the engine, because the engine is for a GPU that
        # this machine does not have.
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
        # The directory is temporary, so its path is removed from the message.
        raise InvalidModel(str(error).replace(f"{folder.parent}/", "")) from error


def _find_none(name: str, version: int | None) -> Never:
    raise NotFound(f"model {name!r} is not loaded")
