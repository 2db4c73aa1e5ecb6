"""Reads models, versions and regions from a path."""

from __future__ import annotations

from urllib.parse import unquote

from fovea_preprocess.errors import InvalidRequest
from fovea_server.dataplane.service import Service
from fovea_server.http.v2.messages import Request
from fovea_server.models.model import ServedModel

# Decimal digits that always fit a signed 64-bit number.
_LONGEST_VERSION = 18


def name_of(request: Request, kind: str) -> str:
    """Read a name in the path, unquoted; "" where there is none."""
    return unquote(request.names[kind] or "")


def version_of(request: Request) -> int | None:
    """Read the version in the path; None where there is none.

    Raises:
        InvalidRequest: it is too large.
    """
    text = request.names["version"]
    if text is None:
        return None
    if len(text) > _LONGEST_VERSION:
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text}', version should "
            "be an integral value > 0"
        )
    return int(text)


def model_of(service: Service, request: Request) -> ServedModel:
    """Look up the model in the path.

    Raises:
        NotFound: it is not served.
        InvalidRequest: the version is too large.
    """
    return service.plane.find(name_of(request, "model"), version_of(request))
