"""Routes of shadows: /v1/models/NAME/shadow."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import ValidationError

from fovea_life.shadow.described import described_begin, described_file, described_shadow
from fovea_life.shadow.documents import ShadowDocument, ShadowRequest
from fovea_life.shadow.markdown import markdown
from fovea_life.shadow.shadows import Shadows
from fovea_preprocess.errors import InvalidOption, NotFound
from fovea_server.http.v1.answered import answered
from fovea_server.http.v1.body import json_object
from fovea_server.http.v1.models import ModelName, call_of, check_control, restricted

_READ = [restricted("metadata"), restricted("statistics")]
_PICTURE = Annotated[str, Path(description="`picture` of one of the worst", examples=["1.jpg"])]


def shadow_routes(shadows: Shadows) -> APIRouter:
    """Make the routes; beginning, stopping and pictures are for who may load models."""
    router = APIRouter(tags=["shadow"], prefix="/v1/models/{name}/shadow")

    @router.put("", **described_begin("begin_shadow"))
    async def begin_shadow(request: Request, name: ModelName) -> Response:
        """Run a version on a share of the live images, beside the one that answers."""
        _check(request)

        async def work(body: bytes) -> Response:
            shadow = await shadows.begin(name, _asked(json_object(body)))
            return Response(shadow.document().model_dump_json(), media_type="application/json")

        return await answered(request, work, None)

    @router.get("", dependencies=_READ, **described_shadow("get_shadow"))
    async def get_shadow(name: ModelName) -> ShadowDocument:
        """Describe the shadow of a model, with the comparison so far."""
        return shadows.get(name).document()

    @router.delete("", **described_shadow("end_shadow"))
    async def end_shadow(request: Request, name: ModelName) -> ShadowDocument:
        """Stop the shadow of a model; its report stays until another begins."""
        _check(request)
        return (await shadows.end(name)).document()

    @router.get(
        "/report.md",
        dependencies=_READ,
        **described_file("shadow_report", "the report as a page", "text/markdown"),
    )
    async def shadow_report(name: ModelName) -> Response:
        """Write the comparison so far as a page."""
        text = markdown(shadows.get(name).document())
        return Response(text, media_type="text/markdown; charset=utf-8")

    @router.get("/worst/{picture}", **described_file("shadow_worst", "the picture", "image/jpeg"))
    async def shadow_worst(request: Request, name: ModelName, picture: _PICTURE) -> Response:
        """Return one of the worst images, with both results drawn side by side."""
        _check(request)
        if (data := shadows.get(name).pictures.get(picture)) is None:
            raise NotFound(
                f"'{picture[:60]}' is none of the worst images: see `worst` in the report"
            )
        return Response(data, media_type="image/jpeg")

    return router


def _check(request: Request) -> None:
    call_of(request).model = request.path_params["name"]
    check_control(request, "model-repository")


def _asked(given: dict[str, Any]) -> ShadowRequest:
    try:
        return ShadowRequest.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        known = ", ".join(ShadowRequest.model_fields)
        raise InvalidOption(f"{key}: {first['msg']}; keys are {known}") from None
