"""The counts of a canary, kept in the folder of its model: a restart of the server forgets none."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from fovea_server.rollout.promotion.documents import Event

_FILE = ".canary.json"

_Count = Annotated[int, Field(ge=0)]


class CanaryCounts(BaseModel):
    """Requests that a canary and the current version have answered, and failed."""

    version: int
    at: str = Field(description="when the canary began, as the history has it")
    answered: _Count
    failed: _Count
    current_answered: _Count
    current_failed: _Count


def read_counts(folder: Path, event: Event) -> CanaryCounts | None:
    """Read the counts of the canary that an event began; None where there are none."""
    try:
        found = CanaryCounts.model_validate_json((folder / _FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    return found if (found.version, found.at) == (event["version"], event["at"]) else None


def write_counts(folder: Path, counts: CanaryCounts) -> None:
    """Write counts, whole or not at all; OSError where the folder cannot be written."""
    path = folder / _FILE
    part = path.with_suffix(f".{os.getpid()}")
    try:
        part.write_text(counts.model_dump_json())
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def drop_counts(folder: Path) -> None:
    """Remove the counts of a canary that is over."""
    with suppress(OSError):
        (folder / _FILE).unlink(missing_ok=True)
