"""Follows the promotion histories of models, ends canaries, and serves the promotion routes."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from fovea_engines.repository.history import HISTORY_FILE
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import FoveaError, InvalidRequest
from fovea_server.dataplane.canaries import Canaries
from fovea_server.dataplane.models import Models
from fovea_server.feature import Feature
from fovea_server.http.v1.dependencies import INDEX, ModelName, answer_change, call_of
from fovea_server.http.v1.openapi import describe_route
from fovea_server.rollout.canary import RunningCanary
from fovea_server.rollout.promotion_documents import (
    DEFAULT_EVENTS,
    MAX_EVENTS,
    Event,
    ModelHistory,
    Promotion,
    Rollback,
)
from fovea_server.rollout.record import (
    CanaryCounts,
    HistoryRecord,
    drop_counts,
    read_counts,
    write_counts,
)
from fovea_server.rollout.shadows import Shadows

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_LOOKS_PER_LISTING = 15
# Extra time after the end of a canary that has seen too few requests on this server. In this time,
# other servers of the repository may pass the canary.
_PATIENCE = timedelta(seconds=10)

# Modification time (ns) and size of the history file, for each model that has one.
_Stamps = dict[str, tuple[int, int]]


class Promoter(Feature):
    """Makes versions current on this server, and follows changes by other servers and commands.

    Servers of the same repository share a history file for each model. The promoter checks these
    files each second.
    """

    def __init__(self, models: Models, canaries: Canaries, shadows: Shadows) -> None:
        self._models, self._canaries, self._shadows = models, canaries, shadows
        self._seen: _Stamps = {}
        self._files: dict[str, Path] = {}
        # One lock per model. Without the lock, a check during a change would unload a version that
        # is loaded but not current yet. Two checks could also begin the same canary twice.
        self._changing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._kept: dict[str, CanaryCounts] = {}
        self._task: asyncio.Task[None] | None = None

    def router(self) -> APIRouter:
        """Make the routes."""
        return _promotion_routes(self)

    async def start(self) -> None:
        """Begin to follow the histories."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop following the histories; canaries continue when the server starts again."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            await self._keep()

    async def change(self, name: str, given: Rollback, who: str) -> None:
        """Make a version current, begin a canary, or roll back.

        This server first loads the version, and then changes the history.

        Args:
            name: name of the model.
            given: the promotion or rollback that was requested.
            who: name of the user, for the history.

        Raises:
            NotFound: the model or version does not exist.
            InvalidRequest: the version cannot be loaded, or cannot be a canary; then nothing has
                changed.
            Unavailable: the history cannot be written.
        """
        async with self._changing[name]:
            with await asyncio.to_thread(HistoryRecord, *self._place(name)) as record:
                if (event := record.event_of(given)) is None:
                    return
                await self._load(name, event["version"], canary=event["action"] == "canary")
                await asyncio.to_thread(record.append, event, who, given.why or "")
            await self._take_over(name)

    async def history(
        self, name: str, limit: int = DEFAULT_EVENTS, before: int | None = None
    ) -> ModelHistory:
        """Return the last events of a model; see `ModelHistory.of`.

        Raises:
            NotFound: the model does not exist.
        """
        models, folder = self._place(name)
        # The file is read in a thread, because it may be long.
        found = await asyncio.to_thread(models.history, folder)
        running = self._canaries.get(name)
        canary = None if running is None else running.figures()
        return ModelHistory.of(
            name, found.events, found.current, canary, limit=limit, before=before
        )

    def _place(self, name: str) -> tuple[ModelRepository, str]:
        folder = self._models.folder(name)
        return ModelRepository(folder.parent), folder.name

    async def _load(self, name: str, version: int, *, canary: bool = False) -> None:
        """Load a version in addition to the served versions; do nothing if the model is not loaded.

        Raises:
            InvalidRequest: the version cannot be loaded, or cannot be a canary.
        """
        fault = "it is not ready: see `fovea versions` and the server's log"
        try:
            if not await self._models.follow(name, version):
                return
            config = self._models.get(name).config
            if canary and config.sequence_batching is not None:
                fault = "it keeps state for sequences, and versions do not share this state"
            elif version in self._models.versions(name):
                return
        except FoveaError as error:
            if version in self._models.versions(name):
                return
            fault = str(error)
        with suppress(FoveaError):
            await self._models.follow(name)
        kind = "a canary" if canary else "current"
        raise InvalidRequest(f"version {version} of {name} cannot be {kind}: {fault}")

    async def _run(self) -> None:
        fault = ""
        for look in count():
            await asyncio.sleep(_LOOK_S)
            try:
                if look % _LOOKS_PER_LISTING == 0:
                    await asyncio.to_thread(self._find)
                await self._look()
                fault = ""
            except Exception as error:  # a failed check must not prevent later checks
                if fault != (fault := repr(error)):
                    log.exception("histories could not be read")

    async def _look(self) -> None:
        stamps = await asyncio.to_thread(self._stamps)
        for name in stamps.keys() | self._seen.keys():
            changing = self._changing[name]
            if stamps.get(name) != self._seen.get(name) and not changing.locked():
                async with changing:
                    await self._take_over(name)
        for name, canary in self._canaries.all():
            if not (changing := self._changing[name]).locked():
                async with changing:
                    await self._judge(name, canary)
        await self._keep()

    async def _keep(self) -> None:
        """Store the counts of canaries that have changed, if the repository is writable."""
        for name, canary in self._canaries.all():
            if (counts := canary.counts) != self._kept.get(name):
                self._kept[name] = counts
                with suppress(FoveaError, OSError):
                    await asyncio.to_thread(write_counts, self._models.folder(name), counts)

    def _find(self) -> None:
        for name in self._models.availability():
            with suppress(FoveaError):
                self._files[name] = self._models.folder(name) / HISTORY_FILE

    def _stamps(self) -> _Stamps:
        found: _Stamps = {}
        for name, file in list(self._files.items()):
            with suppress(OSError):
                status = file.stat()
                found[name] = status.st_mtime_ns, status.st_size
        return found

    async def _take_over(self, name: str) -> None:
        """Serve the versions that the history names.

        Log a fault once for each change of the file.
        """
        with suppress(FoveaError):
            self._files[name] = self._models.folder(name) / HISTORY_FILE
        stamp = (await asyncio.to_thread(self._stamps)).get(name)
        try:
            await self._models.follow(name)
        except (FoveaError, OSError) as error:
            log.error("the promotion history of model %s cannot be applied: %s", name, error)
        canary: Event | None = None
        with suppress(FoveaError, OSError):
            models, folder = self._place(name)
            canary = (await asyncio.to_thread(models.history, folder)).canary
        running = self._canaries.get(name)
        if running is not None and running.event != canary:
            await self._forget(name)
        if canary is not None and self._canaries.get(name) is None:
            await self._begin(name, canary)
        self._seen.pop(name, None)
        if stamp is not None:
            self._seen[name] = stamp

    async def _begin(self, name: str, event: Event) -> None:
        try:
            began = RunningCanary(self._models, event)
        except FoveaError as error:
            log.error(
                "the canary in the promotion history of model %s cannot be started: %s", name, error
            )
            return
        with suppress(FoveaError):
            folder = self._models.folder(name)
            if (counts := await asyncio.to_thread(read_counts, folder, event)) is not None:
                began.go_on(counts)
        self._kept[name] = began.counts
        self._canaries.begin(name, began)
        await began.compare(name, self._shadows)

    async def _forget(self, name: str) -> None:
        canary = self._canaries.end(name)
        self._kept.pop(name, None)
        with suppress(FoveaError):
            await asyncio.to_thread(drop_counts, self._models.folder(name))
        if canary.shadow is not None and not canary.shadow.is_over:
            await self._shadows.end(name, "the canary ended")

    async def _judge(self, name: str, canary: RunningCanary) -> None:
        """End a canary that has failed or whose time is over."""
        found = self._models.versions(name)
        fault = canary.fault()
        if found and canary.version not in found:
            fault = "it could not be loaded, or it failed later: see the server's log"
        if fault is None:
            now, lacks = datetime.now(UTC), canary.lacks()
            # If this server has seen too few requests, another server of the repository may have
            # seen enough, and ends the canary within `_PATIENCE`.
            if now < canary.until + (_PATIENCE if lacks else timedelta()):
                return
            if lacks:
                fault = canary.shortage()
        outcome = "passed" if fault is None else "failed"
        why = fault or f"{canary.own.answered} requests answered within its limits"
        log.warning("canary %d of model %s: %s: %s", canary.version, name, outcome, why)
        try:
            await asyncio.to_thread(self._end, name, canary.event, f"canary_{outcome}", why)
        except (FoveaError, OSError) as error:
            log.error("the canary ended on this server only: %s", error)
            await self._forget(name)
        else:
            await self._take_over(name)

    def _end(self, name: str, event: Event, action: str, why: str) -> None:
        with HistoryRecord(*self._place(name)) as record:
            # Another server may have ended the canary already.
            if record.history.canary == event:
                both = {"version": event["version"], "previous": event["previous"]}
                record.append({"action": action, **both}, "fovea", why)


_CHANGES = 400, 403, 404, 413, 422, 503
_Limit = Annotated[
    int, Query(ge=1, le=MAX_EVENTS, description="largest number of events in the response")
]
_Before = Annotated[int | None, Query(ge=1, description="return only events with a smaller number")]


def _promotion_routes(promoter: Promoter) -> APIRouter:
    """Make the routes; promotions and rollbacks need the permission to load models."""
    router = APIRouter(tags=["models"], prefix="/v1/models/{name}", dependencies=INDEX)

    async def changed(request: Request, name: str, kind: type[Rollback]) -> Response:
        async def work(given: Rollback) -> str:
            call = call_of(request)
            who = call.principal.name if call.principal is not None else (given.who or "")[:100]
            # `shield` lets the change finish if the client disconnects. Otherwise a version could
            # stay loaded without being current.
            await asyncio.shield(promoter.change(name, given, who or call.client or ""))
            return (await promoter.history(name)).model_dump_json(exclude_none=True)

        return await answer_change(request, kind, work)

    @router.get(
        "/history",
        response_model_exclude_none=True,
        **describe_route("model_history", ModelHistory, 403, 404, 422, 503),
    )
    async def model_history(
        name: ModelName, limit: _Limit = DEFAULT_EVENTS, before: _Before = None
    ) -> ModelHistory:
        """List who made which version current, when and why; include a running canary."""
        return await promoter.history(name, limit, before)

    @router.post(
        "/promote", **describe_route("promote_model", ModelHistory, *_CHANGES, body=Promotion)
    )
    async def promote_model(request: Request, name: ModelName) -> Response:
        """Make a version current, or begin a canary.

        The current version gets all requests that name no version.
        """
        return await changed(request, name, Promotion)

    @router.post(
        "/rollback", **describe_route("roll_model_back", ModelHistory, *_CHANGES, body=Rollback)
    )
    async def roll_model_back(request: Request, name: ModelName) -> Response:
        """End the running canary, or make the previous version current again.

        A version is skipped if it was a canary after it was last current, and the canary was
        withdrawn.
        """
        return await changed(request, name, Rollback)

    return router
