"""What a path names."""

from __future__ import annotations

from urllib.parse import unquote

from fovea_preprocess.errors import InvalidRequest
from fovea_server.dataplane.service import Service
from fovea_server.http.v2.messages import Request
from fovea_server.models.model import ServedModel

# Of decimal digits; a version is a signed 64-bit number.
_LONGEST_VERSION = 18


def name_of(request: Request, kind: str) -> str:
    """A name in the path, unquoted; "" where there is none."""
    return unquote(request.names[kind] or "")


def version_of(request: Request) -> int | None:
    """The version of a model in the path; None where there is none.

    Raises:
        InvalidRequest: it is too large to be one.
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
    """The model that the path names.

    Raises:
        NotFound: it is not served.
        InvalidRequest: the version is none.
    """
    return service.plane.find(name_of(request, "model"), version_of(request))
