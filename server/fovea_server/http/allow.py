"""Methods of an address: where GET is answered, so are HEAD and OPTIONS."""

from __future__ import annotations

from collections.abc import Collection


def allow(methods: Collection[str]) -> str:
    """The `Allow` header of an address.

    Args:
        methods: that the route answers itself.
    """
    also = ("HEAD", "OPTIONS") if "GET" in methods else ()
    return ", ".join(sorted({*methods, *also}))
