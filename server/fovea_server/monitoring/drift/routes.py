"""The route of drift: /v1/models/NAME/drift."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from fovea_server.http.v1.openapi import described
from fovea_server.http.v1.route import ModelName, restricted
from fovea_server.monitoring.drift.report import DriftReport, drift_report
from fovea_server.monitoring.drift.watch import Drift


def drift_routes(watch: Drift) -> APIRouter:
    """Make the route."""
    router = APIRouter(tags=["models"], dependencies=[restricted("statistics")])

    @router.get("/v1/models/{name}/drift", **described("model_drift", DriftReport, 403, 404, 503))
    async def model_drift(name: ModelName) -> DriftReport:
        """Compare the last images of a model with those that it was built with."""
        return await run_in_threadpool(drift_report, *watch.window(name))

    return router
