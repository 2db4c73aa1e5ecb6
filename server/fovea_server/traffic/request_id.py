"""The id of a request: the client's `X-Request-Id`, or a fresh one."""

from __future__ import annotations

import itertools
import re
import secrets

HEADER = "x-request-id"

# No spaces and no control characters: the id stands in log lines and in headers.
_SANE = re.compile(r"[\x21-\x7e]{1,128}")

# Together unique, and much cheaper than a UUID; an id need not be secret.
_PROCESS = secrets.token_hex(8)
_COUNTER = itertools.count(1)


def request_id(given: str | None) -> str:
    """Return the given id, or a fresh one if it is absent, too long or not printable ASCII."""
    if given is not None and _SANE.fullmatch(given):
        return given
    return f"{_PROCESS}{next(_COUNTER):08x}"
