"""The id of a request: the client's `X-Request-Id`, or a fresh one."""

from __future__ import annotations

import random
import re

HEADER = "x-request-id"

# No spaces and no control characters: the id stands in log lines and in headers.
_SANE = re.compile(r"[\x21-\x7e]{1,128}")


def request_id(given: str | None) -> str:
    """The given id, or a fresh one where it is absent, too long or not printable ASCII."""
    if given is not None and _SANE.fullmatch(given):
        return given
    # An id need not be secret, and this costs a tenth of a UUID.
    return f"{random.getrandbits(128):032x}"
