"""Reads headers such as Accept, whose entries have weights."""

from __future__ import annotations

from collections.abc import Iterator


def weights(header: str) -> Iterator[tuple[str, float]]:
    """Yield each entry in lower case, and its weight: 1 if it has none, 0 if that is no number."""
    for part in header.lower().split(","):
        entry, *parameters = (word.strip() for word in part.split(";"))
        quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        try:
            yield entry, float(quality)
        except ValueError:
            yield entry, 0.0
