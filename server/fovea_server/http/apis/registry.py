"""Finds the routes of an API by its name."""

from __future__ import annotations

from fastapi import APIRouter

from fovea_server.extensions.apis import Api


def api_router(api: Api) -> APIRouter:
    """Return the routes of an API; its modules are imported for servers that serve it alone."""
    match api:
        case Api.DEEPSTACK:
            from fovea_server.http.apis.deepstack import router
        case Api.ROBOFLOW:
            from fovea_server.http.apis.roboflow.routes import router
        case Api.LABEL_STUDIO:
            from fovea_server.http.apis.label_studio.routes import router
    return router
