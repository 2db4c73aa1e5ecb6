"""Parts of /v1 that ask for a secret header, as those of the v2 protocol do."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Request

from fovea_preprocess.errors import Restricted
from fovea_server.dataplane.service import Service


def service_of(request: Request) -> Service:
    """What answers."""
    service: Service = request.app.state.service
    return service


def restricted(api: str) -> Any:
    """A dependency that lets through only those who may use an API of the v2 protocol.

    Args:
        api: one of `restrictions.APIS`.
    """

    async def check(request: Request) -> None:
        key = service_of(request).http_restrictions.missing(api, request.headers.get)
        if key is not None:
            raise Restricted(f"This API is restricted, expecting header '{key}'")

    return Depends(check)
