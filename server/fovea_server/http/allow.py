"""The `Allow` header: where GET is answered, so are HEAD and OPTIONS."""

from __future__ import annotations

from collections.abc import Collection


def allow(methods: Collection[str]) -> str:
    """Make the `Allow` header of an address by the methods of its routes."""
    also = ("HEAD", "OPTIONS") if "GET" in methods else ()
    return ", ".join(sorted({*methods, *also}))
