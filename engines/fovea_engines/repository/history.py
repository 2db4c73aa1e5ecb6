"""The history of a model: which of its versions were made current, in the order of time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from fovea_preprocess.errors import InvalidModel

HISTORY_FILE = "history.jsonl"
"""In the model's folder: a line of JSON for each event, and lines are only added."""


@dataclass(frozen=True, slots=True)
class History:
    """The events of a model, and what follows from them.

    Attributes:
        events: the oldest first.
        current: the version that answers requests which name none; None: the newest.
        earlier: those before it; a rollback goes to the last.
        canary: the event of the canary that runs; None without one.
    """

    events: tuple[Mapping[str, Any], ...] = ()
    current: int | None = None
    earlier: tuple[int, ...] = ()
    canary: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file of a model's folder; InvalidModel names a line that is no event."""
        found, lines = cls(), (folder / HISTORY_FILE).read_bytes().splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            # A line without an end was never written to it: its writer was killed.
            if line.endswith(b"\n"):
                try:
                    found = found.after(json.loads(line))
                except (ValueError, KeyError, TypeError):
                    raise InvalidModel(
                        f"line {number} of {folder.name}/{HISTORY_FILE} is no event: take it out"
                    ) from None
        return found

    def after(self, event: Mapping[str, Any]) -> Self:
        """Add an event; KeyError, TypeError or ValueError where it is none."""
        action, version, previous = event["action"], int(event["version"]), int(event["previous"])
        earlier, current, canary = self.earlier, version, None
        match action:
            case "promote" | "canary_passed":
                earlier = (*earlier, previous)
            case "rollback":
                # That of a canary ends it, and no more.
                earlier = earlier if self.canary else earlier[:-1]
            case "canary":
                current, canary = previous, event
            case "canary_failed":
                current = previous
            case _:
                raise ValueError(action)
        events = (*self.events, event)
        return replace(self, events=events, current=current, earlier=earlier, canary=canary)

    def served(self, chosen: Iterable[int], there: Sequence[int]) -> tuple[int, ...]:
        """Add the current version and the canary to those that a policy has chosen.

        Only versions that are `there`; ascending, but the current one last.
        """
        ours = () if self.canary is None else (self.canary["version"],)
        wanted = {*chosen, self.current, *ours}
        return tuple(sorted(wanted & set(there), key=lambda each: (each == self.current, each)))
