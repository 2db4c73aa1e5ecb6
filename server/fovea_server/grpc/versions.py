"""Parses the versions of models in requests."""

from __future__ import annotations

from fovea_preprocess.errors import InvalidRequest
from fovea_server.extensions.leading_number import leading_number

_MOST = 2**63 - 1


def version_of(text: str) -> int | None:
    """Parse a version; None for "", which leaves the choice to the server.

    Raises:
        InvalidRequest: it is no number, or below 0; Triton's text.
    """
    if not text:
        return None
    version = leading_number(text)
    if version is None or abs(version) > _MOST:
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if version < 0:
        raise InvalidRequest(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return version
