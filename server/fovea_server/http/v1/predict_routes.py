"""The routes of predict requests as the OpenAPI document has them; `PredictRoute` answers them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter

from fovea_preprocess.errors import NotFound
from fovea_server.http.v1.openapi import described_drawing, described_prediction
from fovea_server.http.v1.route import ModelName, Version, inferring

router = APIRouter(tags=["predict"], dependencies=[inferring])
"""Describes the requests in the OpenAPI document, and refuses those with a wrong version."""


def _add(path: str, operation: str, describe: Callable[[str], dict[str, Any]], does: str) -> None:
    """Add the two routes of an operation: of the current version of a model, and of a named one."""

    @router.post(
        f"/v1/models/{{name}}/{path}", **describe(operation), summary=does, description=does
    )
    async def current(name: ModelName) -> None:
        raise NotFound(f"there is no model '{name[:60]}'")

    @router.post(
        f"/v1/models/{{name}}/versions/{{version}}/{path}",
        **describe(f"{operation}_version"),
        summary=f"{does} With one version of the model.",
        description=f"{does} With one version of the model.",
    )
    async def one(name: ModelName, version: Version) -> None:
        raise NotFound(f"model '{name[:60]}' has no such version")


_image = partial(described_prediction, kind="application/octet-stream")
_form = partial(described_prediction, kind="multipart/form-data")
_json = partial(described_prediction, kind="application/json")
_add("predict", "predict", _image, "Find what is on an image.")
_add("predict/form", "predict_form", _form, "Find what is on the images of a form.")
_add("predict/json", "predict_json", _json, "Find what is on images that are inside of JSON.")
_add("annotate", "annotate", described_drawing, "Draw what is on an image into it.")
