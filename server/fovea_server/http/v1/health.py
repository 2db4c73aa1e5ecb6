"""Is the server up, and does it take requests?"""

from __future__ import annotations

from fastapi import APIRouter, Request

from fovea_server.dataplane.model_documents import Live, Ready
from fovea_server.http.v1.access import restricted, service_of
from fovea_server.http.v1.openapi import described

router = APIRouter(tags=["health"], prefix="/v1/health", dependencies=[restricted("health")])


@router.get("/live", **described("server_live", Live, 403))
async def live() -> Live:
    """Tell that the process answers."""
    return Live(live=True)


@router.get("/ready", **described("server_ready", Ready, 403, 503))
async def ready(request: Request) -> Ready:
    """Tell whether every model of the start is ready; 503 says why not."""
    service_of(request).plane.check_ready()
    return Ready(ready=True)
