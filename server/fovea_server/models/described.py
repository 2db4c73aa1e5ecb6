"""Describes models without loading them, for servers whose models run in other processes.

The description comes from the card and the configuration of a model, through the same code that
describes loaded models.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fovea_engines.engine import Engine
from fovea_engines.heads.head_file import load_head_of
from fovea_engines.progress import Progress
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.model_config import ModelConfig
from fovea_engines.session import Array, Closing
from fovea_preprocess.errors import ModelNotReady
from fovea_server.models.config.config import complete_config
from fovea_server.models.opening import open_engine
from fovea_server.settings import Settings


class CardSession(Closing):
    """Session of an engine that is not opened; it has the specifications of the tensors only."""

    concurrency = 1
    steady = offloads = False

    def __init__(self, card: EngineCard) -> None:
        self.inputs, self.outputs, self.max_batch = card.inputs, card.outputs, card.max_batch

    def infer(self, feeds: Mapping[str, Array], *, alone: bool = True) -> dict[str, Array]:
        """Raise ModelNotReady, because the engine runs in another process."""
        raise ModelNotReady("this process only describes the model; another process runs it")

    def close(self) -> None:
        """Do nothing: no engine is open."""


def describe_engine(
    folder: Path, config: ModelConfig, settings: Settings, progress: Progress
) -> tuple[Engine, ModelConfig]:
    """Describe a version from its card; return and raise the same as `open_engine`.

    An engine without a card is opened for a moment, because only the engine has the specifications
    of its tensors.
    """
    if (folder / CARD_FILE).exists():
        card = EngineCard.read(folder / CARD_FILE)
        load_head_of(folder, card, allow_code=settings.allow_code)
    else:
        opened, _ = open_engine(folder, config, settings, progress)
        card = opened.card
        opened.close()
    engine = Engine(card, CardSession(card))
    fill_in = not settings.disable_auto_complete_config
    return engine, complete_config(config, engine, fill_in=fill_in)
