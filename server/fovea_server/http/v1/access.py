"""Restricts parts of /v1 to clients with a secret header, as in the v2 protocol."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Request

from fovea_preprocess.errors import Restricted
from fovea_server.dataplane.service import Service


def service_of(request: Request) -> Service:
    """Return the service of the application."""
    service: Service = request.app.state.service
    return service


def restricted(api: str) -> Any:
    """Make a dependency that refuses clients without the header of one of `restrictions.APIS`."""

    async def check(request: Request) -> None:
        key = service_of(request).http_restrictions.missing(api, request.headers.get)
        if key is not None:
            raise Restricted(f"This API is restricted, expecting header '{key}'")

    return Depends(check)
