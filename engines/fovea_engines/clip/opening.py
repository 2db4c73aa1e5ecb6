"""Opens the text encoder of an engine."""

from __future__ import annotations

import logging
from pathlib import Path

from fovea_engines.backends.installing import install_extra
from fovea_engines.backends.registry import REFERENCE_BACKEND, open_session
from fovea_engines.clip.texts import (
    MAX_ROWS,
    PROMPTS_FILE,
    TEXT_FILE,
    TOKENIZER_FILE,
    Tokens,
    Words,
    WordsSpec,
    words_of_texts,
)
from fovea_engines.repository.card import EngineCard
from fovea_engines.session import Session
from fovea_preprocess.errors import BackendUnavailable

log = logging.getLogger(__name__)


def open_words(
    folder: Path, card: EngineCard, threads: int | None, streams: int | None
) -> Words | None:
    """Open the text encoder that a build stored beside an engine.

    Args:
        folder: directory of the engine.
        card: card of the engine.
        threads: number of threads; None for the default.
        streams: number of parallel calls of the detector; None for one per core.

    Returns:
        The text encoder. If the model of the card does not read texts, return None.

    Raises:
        BackendUnavailable: the package `tokenizers` is not installed.
    """
    if (spec := WordsSpec.of(card.metadata)) is None:
        return None
    try:
        tokens = Tokens(folder / TOKENIZER_FILE, spec.length, spec.pad)
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            f"{card.name} accepts texts and needs the package {error.name}, which is not "
            f"installed: {install_extra('clip')}"
        ) from error
    session = open_session(
        REFERENCE_BACKEND, folder / TEXT_FILE, max_batch=MAX_ROWS, threads=threads
    )
    if not (folder / PROMPTS_FILE).is_file():
        return Words(tokens, session, spec)
    file = folder / PROMPTS_FILE
    detector = open_session(REFERENCE_BACKEND, file, max_batch=1, threads=threads, streams=streams)
    return Words(tokens, session, spec, detector)


def own_words(folder: Path, card: EngineCard, session: Session) -> Words | None:
    """Return the text encoder for a model that takes only texts, if its tokenizer is present.

    Returns:
        The text encoder. If there is no tokenizer, if the package `tokenizers` is not
            installed, or if the model takes other inputs than texts, return None.
    """
    if not (folder / TOKENIZER_FILE).is_file():
        return None
    try:
        found = words_of_texts(folder / TOKENIZER_FILE, session, card.metadata)
    except ModuleNotFoundError as error:
        # Without the tokenizer, the server still serves the raw tensors of the model.
        log.warning(
            "%s serves tensors only, because the package %s for texts is not installed: %s",
            card.name,
            error.name,
            install_extra("clip"),
        )
        return None
    return found and Words(found[0], session, found[1])
