"""The right of a client that nothing of its images is kept."""

from __future__ import annotations

from fovea_server.traffic.call import Call

NO_CAPTURE = "x-fovea-no-capture"


def may_keep(call: Call | None) -> bool:
    """Return True unless the request refuses, or its key lacks the scope `capture`."""
    if call is None:
        return True
    if call.header(NO_CAPTURE) is not None:
        return False
    return call.principal is None or "capture" in call.principal.scopes
