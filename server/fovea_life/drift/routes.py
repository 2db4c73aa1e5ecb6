"""The route of drift: /v1/models/NAME/drift."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from fovea_life.drift.report import DriftReport, drift_report
from fovea_life.drift.watch import DriftWatch
from fovea_life.drift.window import IMAGES
from fovea_server.http.v1.models import ModelName, restricted
from fovea_server.http.v1.openapi import described

_EXAMPLE = {
    "model": "yolov8n",
    "version": "1",
    "window": IMAGES,
    "left_out": 0,
    "images": 256,
    "images_from": "val2017",
    "quantities": [
        {
            "quantity": "classes",
            "distance": 0.31,
            "images": 412,
            "bins": [
                {"bin": "person", "expected": 0.54, "live": 0.28},
                {"bin": "others", "expected": 0.46, "live": 0.72},
            ],
        }
    ],
}


def drift_routes(watch: DriftWatch) -> APIRouter:
    """Make the route."""
    made = described("model_drift", DriftReport, 403, 404, 503)
    example = {"application/json": {"examples": {"drift": {"value": _EXAMPLE}}}}
    made["responses"][200] = {"content": example}
    router = APIRouter(tags=["models"], dependencies=[restricted("statistics")])

    @router.get("/v1/models/{name}/drift", **made)
    async def model_drift(name: ModelName) -> DriftReport:
        """Compare the last images of a model with those that it was built with."""
        return await run_in_threadpool(drift_report, *watch.window(name))

    return router
