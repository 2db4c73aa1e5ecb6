"""Says what serves at an address, at `/`."""

from __future__ import annotations

from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import JSONResponse, Response


async def identity(_: Request) -> Response:
    """Return the server's name and version to programs, as load balancers that look for a 200."""
    content = {"name": "fovea", "version": version("fovea-serve"), "docs": "/docs"}
    return JSONResponse(content, headers={"Cache-Control": "no-cache", "Vary": "Accept"})
