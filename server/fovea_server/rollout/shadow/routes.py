"""Routes of shadows: /v1/models/NAME/shadow."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from fovea_preprocess.errors import NotFound
from fovea_server.http.v1.openapi import described, described_file
from fovea_server.http.v1.route import ModelName, restricted
from fovea_server.rollout.changing import admit, changing
from fovea_server.rollout.shadow.documents import ShadowDocument, ShadowRequest
from fovea_server.rollout.shadow.markdown import markdown
from fovea_server.rollout.shadow.shadows import Shadows

_USUAL = 403, 404, 503
_READ = [restricted("metadata"), restricted("statistics")]
_PICTURE = Annotated[str, Path(description="`picture` of one of the worst", examples=["1.jpg"])]


def shadow_routes(shadows: Shadows) -> APIRouter:
    """Make the routes; beginning, stopping and pictures are for who may load models."""
    router = APIRouter(tags=["shadow"], prefix="/v1/models/{name}/shadow")

    @router.put(
        "",
        **described("begin_shadow", ShadowDocument, 400, *_USUAL, 413, 422, body=ShadowRequest),
    )
    async def begin_shadow(request: Request, name: ModelName) -> Response:
        """Run a version on a share of the live images, beside the one that answers."""

        async def work(given: ShadowRequest) -> str:
            return (await shadows.begin(name, given)).document().model_dump_json()

        return await changing(request, ShadowRequest, work)

    @router.get("", dependencies=_READ, **described("get_shadow", ShadowDocument, *_USUAL))
    async def get_shadow(name: ModelName) -> ShadowDocument:
        """Describe the shadow of a model, with the comparison so far."""
        return shadows.get(name).document()

    @router.delete("", **described("end_shadow", ShadowDocument, *_USUAL))
    async def end_shadow(request: Request, name: ModelName) -> ShadowDocument:
        """Stop the shadow of a model; its report stays until another begins."""
        admit(request)
        return (await shadows.end(name)).document()

    @router.get(
        "/report.md",
        dependencies=_READ,
        **described_file("shadow_report", "the report as a page", ["text/markdown"], *_USUAL),
    )
    async def shadow_report(name: ModelName) -> Response:
        """Write the comparison so far as a page."""
        text = markdown(shadows.get(name).document())
        return Response(text, media_type="text/markdown; charset=utf-8")

    @router.get(
        "/worst/{picture}",
        **described_file("shadow_worst", "the picture", ["image/jpeg"], *_USUAL),
    )
    async def shadow_worst(request: Request, name: ModelName, picture: _PICTURE) -> Response:
        """Return one of the worst images, with both results drawn side by side."""
        admit(request)
        if (data := shadows.get(name).pictures.get(picture)) is None:
            raise NotFound(
                f"'{picture[:60]}' is none of the worst images: see `worst` in the report"
            )
        return Response(data, media_type="image/jpeg")

    return router
