"""Removes paths of this machine from cards, because anybody may read a card from the server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.figures import Agreement

# Pattern of the directories in absolute paths. It does not match the slashes in https://host/page.
_FOLDERS = re.compile(r"""(?<![\w:/.~])(?:~?/|[A-Za-z]:\\)(?=\S)(?:[^\s/\\'",;:]+[/\\])*""")


def public_card(card: EngineCard) -> EngineCard:
    """Return the card with only the names of files and directories in place of their paths."""
    builder = card.builder
    if builder is not None:
        plugins = tuple(replace(one, path=Path(one.path.name)) for one in builder.plugins)
        builder = replace(builder, plugins=plugins)
    candidates = tuple(
        replace(one, problem=one.problem and _FOLDERS.sub("", one.problem))
        for one in card.candidates
    )
    return replace(
        card,
        candidates=candidates,
        agreement=_agreement(card.agreement),
        tensorrt=_agreement(card.tensorrt),
        builder=builder,
        metadata=public_metadata(card.metadata),
    )


def public_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Remove the directories from paths in metadata.

    Exporters write e.g. the path of the training data into the metadata.
    """
    return {key: _FOLDERS.sub("", value) for key, value in metadata.items()}


def _agreement(found: Agreement | None) -> Agreement | None:
    """Replace the path of the image directory, which older cards contain, by its name."""
    if found is None or found.images_from is None:
        return found
    return replace(found, images_from=Path(found.images_from).name)
