"""The shadows of a server, at most one per model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import FoveaError, InvalidOption, NotFound
from fovea_server.dataplane.models import Models
from fovea_server.dataplane.prediction import Prediction
from fovea_server.feature import Feature
from fovea_server.http.v1.dependencies import ModelName, admit, answer_change, require_access
from fovea_server.http.v1.openapi import describe_file, describe_route
from fovea_server.models.model import ServedModel, State
from fovea_server.observability.histogram import Family
from fovea_server.rollout.shadow import Shadow
from fovea_server.rollout.shadow_report import (
    ShadowCandidate,
    ShadowDocument,
    ShadowRequest,
    markdown,
)
from fovea_server.settings import Settings
from fovea_server.tensors.messages import SentImage

_USUAL = 403, 404, 503
_READ = [require_access("metadata"), require_access("statistics")]
_PICTURE = Annotated[
    str, Path(description="value of `picture` of one of the worst images", examples=["1.jpg"])
]


def shadow_routes(shadows: Shadows) -> APIRouter:
    """Make the routes.

    To begin or stop a shadow, or to get drawings, a key must permit loading models.
    """
    router = APIRouter(tags=["shadow"], prefix="/v1/models/{name}/shadow")

    @router.put(
        "",
        **describe_route(
            "begin_shadow", ShadowDocument, 400, *_USUAL, 413, 422, body=ShadowRequest
        ),
    )
    async def begin_shadow(request: Request, name: ModelName) -> Response:
        """Run a candidate version on a share of the live images, beside the current version."""

        async def work(given: ShadowRequest) -> str:
            return (await shadows.begin(name, given)).document().model_dump_json()

        return await answer_change(request, ShadowRequest, work)

    @router.get("", dependencies=_READ, **describe_route("get_shadow", ShadowDocument, *_USUAL))
    async def get_shadow(name: ModelName) -> ShadowDocument:
        """Return the state of a model's shadow, with the comparison so far."""
        return shadows.get(name).document()

    @router.delete("", **describe_route("end_shadow", ShadowDocument, *_USUAL))
    async def end_shadow(request: Request, name: ModelName) -> ShadowDocument:
        """Stop the shadow of a model; its report stays until another shadow begins."""
        admit(request)
        return (await shadows.end(name)).document()

    @router.get(
        "/report.md",
        dependencies=_READ,
        **describe_file("shadow_report", "the report as a page", ["text/markdown"], *_USUAL),
    )
    async def shadow_report(name: ModelName) -> Response:
        """Return the comparison so far as a Markdown page."""
        text = markdown(shadows.get(name).document())
        return Response(text, media_type="text/markdown; charset=utf-8")

    @router.get(
        "/worst/{picture}",
        **describe_file("shadow_worst", "the picture", ["image/jpeg"], *_USUAL),
    )
    async def shadow_worst(request: Request, name: ModelName, picture: _PICTURE) -> Response:
        """Return one of the worst images, with both results drawn side by side."""
        admit(request)
        if (data := shadows.get(name).pictures.get(picture)) is None:
            raise NotFound(
                f"'{picture[:60]}' is not one of the worst images: see `worst` in the report"
            )
        return Response(data, media_type="image/jpeg")

    return router


class Shadows(Feature):
    """Begins shadows, offers them live images, and stores the last shadow of each model."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self._models, self._settings = models, settings
        self._shadows: dict[str, Shadow] = {}
        self._changing = asyncio.Lock()

    def router(self) -> APIRouter:
        """Make the routes."""
        return shadow_routes(self)

    async def begin(self, name: str, request: ShadowRequest, against: int | None = None) -> Shadow:
        """Run a version beside the current version, or beside the version `against`.

        If a shadow of the model runs already, it is stopped. The candidate is opened in the
        background; see `Shadow.state`.

        Raises:
            NotFound, ModelNotReady: the model or version does not exist, or cannot respond now.
            InvalidOption: the versions cannot be compared.
        """
        async with self._changing:
            candidate = self._candidate(name, request.version, against)
            if (old := self._shadows.get(name)) is not None:
                await asyncio.to_thread(old.stop, "another shadow test replaced it")
            shadow = Shadow(
                request,
                candidate,
                self._requests_wait,
                lambda: self._gone(candidate),
            )
            self._shadows[name] = shadow
            return shadow

    def get(self, name: str) -> Shadow:
        """Return the last shadow of a model, running or ended.

        Raises:
            NotFound: the model never had a shadow.
        """
        self._models.get(name)
        if (shadow := self._shadows.get(name)) is None:
            raise NotFound(
                f"model '{name}' has no shadow test: start one with `fovea shadow {name} VERSION`"
            )
        return shadow

    async def end(self, name: str, reason: str = "it was stopped by request") -> Shadow:
        """Stop the shadow of a model, and return its last state.

        Raise NotFound if it never had one.
        """
        async with self._changing:
            shadow = self.get(name)
            await asyncio.to_thread(shadow.stop, reason)
            return shadow

    async def stop(self) -> None:
        """Stop all shadows."""
        async with self._changing:
            for shadow in self._shadows.values():
                await asyncio.to_thread(shadow.stop, "the server stops")

    def observe(
        self, model: ServedModel, images: Sequence[SentImage | FoveaError], prediction: Prediction
    ) -> None:
        """Offer the images of a response to the shadow of their model."""
        if (shadow := self._shadows.get(model.name)) is not None:
            shadow.offer(images, prediction)

    def families(self) -> Iterable[Family]:
        """Return the metrics of all shadows."""
        images = Family(
            "fovea_shadow_images_total", "counter", "Live images that a candidate was shown"
        )
        differing = Family(
            "fovea_shadow_disagreement", "gauge", "Share of a candidate's results that differ"
        )
        for name, shadow in self._shadows.items():
            labels = {"model": name, "version": str(shadow.request.version)}
            report = shadow.report
            counts = {
                "compared": 0 if report is None else report.images,
                "failed": 0 if report is None else report.failed,
                **shadow.skipped,
            }
            for outcome, count in counts.items():
                images.add({**labels, "outcome": outcome}, count)
            if report is not None and report.disagreement is not None:
                differing.add(labels, report.disagreement)
        return images, differing

    def _candidate(self, name: str, version: int, against: int | None) -> ShadowCandidate:
        model = self._models.get(name, against)
        model.check_ready()
        engine = model.engine
        if model.config.composing:
            raise InvalidOption(
                f"'{name}' is a pipeline of {', '.join(model.config.composing)}: compare their "
                "versions one by one"
            )
        if engine is None or engine.head is None or engine.preprocessor is None:
            raise InvalidOption(
                f"model '{name}' returns tensors, which a shadow test cannot compare: use `fovea "
                "diff` instead, which compares two models layer by layer"
            )
        if version == model.version:
            raise InvalidOption(
                f"version {version} of '{name}' is already current: choose another version"
            )
        folder = model.folder.parent
        there = ModelRepository(folder.parent).versions(folder.name)
        if version not in there:
            raise NotFound(
                f"model '{name}' has no version {version}; existing versions: "
                f"{', '.join(map(str, there))}"
            )
        return ShadowCandidate(
            folder=folder,
            model=name,
            version=version,
            against=model.version,
            task=model.task,
            vocabulary=engine.vocabulary(),
            settings=self._settings,
        )

    def _requests_wait(self) -> bool:
        try:
            return any(
                model.scheduler.pending for model in self._models if model.state is State.READY
            )
        except FoveaError:  # a model was unloaded meanwhile
            return False

    def _gone(self, candidate: ShadowCandidate) -> str:
        if not (candidate.folder / str(candidate.version)).is_dir():
            return f"version {candidate.version} was deleted"
        try:
            if self._models.get(candidate.model, candidate.against).state is State.READY:
                current = self._models.get(candidate.model).version
                return "" if current == candidate.against else f"version {current} is current now"
        except FoveaError:
            pass
        return f"version {candidate.against}, to which it was compared, is no longer served"
