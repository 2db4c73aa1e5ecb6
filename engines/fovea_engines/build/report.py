"""Writes the readable report beside a card, also for a refused build."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fovea_engines.build.card_text import card_text
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.build.worst import worst_image
from fovea_engines.detect.draw import encode
from fovea_engines.engine import Engine
from fovea_engines.evaluate.agreement.sensitivity import Sensitivity
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.writing import write_file

FAILED_FOLDER: Final = "failed-build"
"""Folder of a model that holds the report of its last refused build; it is no version."""

REPORT_FILE: Final = "card.md"
IMAGE_FILE: Final = "worst.jpg"


def write_report(
    folder: Path,
    card: EngineCard,
    plan: BuildPlan,
    prepared: PreparedModel,
    engine: Engine,
    ranking: Sequence[Sensitivity],
) -> None:
    """Write card.md, and worst.jpg where detections differ.

    Args:
        folder: target folder.
        card: with all its figures.
        plan: the plan of the build.
        prepared: its source model.
        engine: the measured engine, open.
        ranking: blocks ranked by the sensitivity search, largest gain first; may be empty.
    """
    worst = card.agreement.worst if card.agreement else ()
    image = worst_image(plan, prepared, engine, worst[0].name) if worst else None
    if image is not None:
        write_file(folder / IMAGE_FILE, encode(image, "image/jpeg"))
    text = card_text(card, plan, ranking, None if image is None else IMAGE_FILE)
    write_file(folder / REPORT_FILE, text.encode())
