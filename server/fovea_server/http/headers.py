"""Reads and writes values of headers."""

from __future__ import annotations

from collections.abc import Collection, Iterator


def allow(methods: Collection[str]) -> str:
    """Make the `Allow` header of an address: where GET is answered, so are HEAD and OPTIONS."""
    also = ("HEAD", "OPTIONS") if "GET" in methods else ()
    return ", ".join(sorted({*methods, *also}))


def weights(header: str) -> Iterator[tuple[str, float]]:
    """Yield each entry of a list such as `Accept` in lower case, and its weight.

    It is 1 where there is none, and 0 where that is no number.
    """
    for part in header.lower().split(","):
        entry, *parameters = (word.strip() for word in part.split(";"))
        quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        try:
            yield entry, float(quality)
        except ValueError:
            yield entry, 0.0
