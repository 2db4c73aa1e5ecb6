"""Hides paths of the machine in cards, for all who may ask a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.figures import Agreement

# Folders of an absolute path in a text. The slashes of https://host/page do not begin one.
_FOLDERS = re.compile(r"""(?<![\w:/.~])(?:~?/|[A-Za-z]:\\)(?=\S)(?:[^\s/\\'",;:]+[/\\])*""")


def public_card(card: EngineCard) -> EngineCard:
    """Return the card with names of files and folders in place of their paths."""
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
    """Strip paths of folders: exporters write into metadata what a model was trained on."""
    return {key: _FOLDERS.sub("", value) for key, value in metadata.items()}


def _agreement(found: Agreement | None) -> Agreement | None:
    """Strip the path of the images, which older cards have."""
    if found is None or found.images_from is None:
        return found
    return replace(found, images_from=Path(found.images_from).name)
