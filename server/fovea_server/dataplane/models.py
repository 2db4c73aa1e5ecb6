"""The models of a server for transports and observers: look-up, loading, unloading, documents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from fovea_engines.repository.config_pbtxt import parse_config
from fovea_preprocess.errors import InvalidModel, ModelNotReady, Unavailable
from fovea_server.dataplane.model_documents import (
    Model,
    ModelList,
    ModelStatistics,
    VersionStatistics,
    model_document,
    model_list,
)
from fovea_server.dataplane.v2_documents import (
    model_metadata,
    statistics_json,
    version_statistics,
)
from fovea_server.json_text import check_weight
from fovea_server.models.model import ServedModel, State
from fovea_server.models.registry import Registry
from fovea_server.models.slot import IndexEntry
from fovea_server.tensors.image_outputs import image_outputs
from fovea_server.traffic.call import CALL
from fovea_server.traffic.principal import Principal

# Number of threads that load models. Most of these threads wait until another load of the same
# model ends.
_LOAD_THREADS = 8

T = TypeVar("T")


class Models:
    """The models of a registry, limited to the models that the current request's client may see.

    An iteration yields every loaded version. Use `get` for /v1, and `find` for Triton's clients.
    Loads run in separate threads.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._draining = False
        # Use separate threads. Loads take seconds and wait for each other, so they would block the
        # threads of other requests.
        self._load_threads = ThreadPoolExecutor(_LOAD_THREADS, "model-control")
        self.cache, self.stop, self.close = registry.cache, registry.stop, registry.close
        self.availability, self.store_faults = registry.availability, registry.store_faults
        self.folder, self.versions = registry.folder, registry.versions

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._registry)

    def get(self, name: str, version: int | None = None) -> ServedModel:
        """Look up a model; see `Registry.get`.

        Raises:
            Forbidden: the API key of the request does not allow the model.
        """
        _check_key(name)
        return self._registry.get(name, version)

    def find(self, name: str, version: int | None = None) -> ServedModel:
        """Look up a model that can respond now; see `Registry.find`.

        Raises:
            Forbidden: the API key of the request does not allow the model.
        """
        _check_key(name)
        return self._registry.find(name, version)

    def of_sequence(self, model: ServedModel, sequence: int | str) -> ServedModel:
        """Return the model version that received the first request of a sequence.

        See `Registry.of_sequence`.
        """
        return self._registry.of_sequence(model, sequence)

    def visible(self) -> Iterator[ServedModel]:
        """Return the models that the client of the current request may see."""
        return (model for model in self._registry if self._registry.sees(model.name))

    def index(self, ready: bool = False) -> list[IndexEntry]:
        """Return the models of the repository that the client may see; see `Registry.index`."""
        return [one for one in self._registry.index(ready) if self._registry.sees(one.name)]

    @property
    def ready(self) -> bool:
        """Return whether the server accepts requests."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Return the reason if the server is not ready, otherwise ""."""
        return "the server is stopping" if self._draining else self._registry.reason

    @property
    def draining(self) -> bool:
        """Return whether the server is about to stop.

        It still answers requests, but is not ready.
        """
        return self._draining

    def drain(self) -> None:
        """Mark the server as not ready, so that load balancers send no further requests."""
        self._draining = True

    def metadata(self, model: ServedModel) -> dict[str, Any]:
        """Return the versions, inputs and outputs of a model for the v2 protocol."""
        return model_metadata(model, self._registry.versions(model.name))

    def current_version(self, model: ServedModel) -> dict[str, str]:
        """Return a dict with the promoted version of a model, or {} if no version is promoted."""
        promoted = self._registry.promoted_version(model.name)
        return {} if promoted is None else {"current_version": str(promoted)}

    def image_outputs(self, model: ServedModel) -> dict[str, Any]:
        """Return the tensors of responses to images, or {} if the model accepts only tensors."""
        engine = model.engine
        if engine is None or engine.head is None or engine.preprocessor is None:
            return {}
        return {
            "image_outputs": image_outputs(engine.head, of_pipeline=bool(model.config.composing))
        }

    async def load(
        self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load a model in a thread. Raise the errors of `Registry.load`, and Forbidden."""
        call = CALL.get()
        principal = None if call is None else call.principal

        def work() -> None:
            if config is not None:
                check_weight(config.encode())
                if principal is not None:
                    _check_composing(principal, config)
            self._registry.load(name, config=config, files=files)

        await self._run_in_thread(work)

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """Unload a model in a thread. Raise the errors of `Registry.unload`."""
        await self._run_in_thread(partial(self._registry.unload, name, dependents=dependents))

    async def load_version(self, name: str, version: int) -> None:
        """Load a version in addition to the loaded versions; see `Registry.load_version`."""
        await self._run_in_thread(partial(self._registry.load_version, name, version))

    async def unload_version(self, name: str, version: int) -> None:
        """Unload a version that was loaded by its number; see `Registry.unload_version`."""
        await self._run_in_thread(partial(self._registry.unload_version, name, version))

    async def follow(self, name: str, upcoming: int | None = None) -> bool:
        """Apply the promotion history of a model in a thread; see `Registry.follow`."""
        return await self._run_in_thread(partial(self._registry.follow, name, upcoming))

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._load_threads, work)

    def check_ready(self, name: str | None = None) -> None:
        """Check that the server, or one of its models, accepts requests.

        Raises:
            Unavailable: the server is not ready.
            ModelNotReady: the model is not ready.
            NotFound: the model does not exist.
        """
        if name is None:
            if reason := self.reason:
                raise Unavailable(reason)
            return
        try:
            model = self.get(name)
            if model.state is State.READY:
                return
            reason = model.reason
        except ModelNotReady as error:
            reason = str(error).removeprefix(f"model '{name}': ")
        raise ModelNotReady(f"model '{name}': {self.visible_reason(name, reason)}")

    def visible_reason(self, name: str, reason: str) -> str:
        """Return the reason why a model is not ready.

        If the client may not see it, refer to the log.
        """
        return reason if self._registry.sees(name) else "it is not ready: see the server's log"

    def documents(self) -> ModelList:
        """Return every model that is served or failed to load."""
        return model_list(self._registry)

    def document(self, name: str, version: int | None = None) -> Model:
        """Return the full document of a model. Raise the errors of `get`."""
        return model_document(self._registry, name, version)

    def statistics(self, name: str, durations: dict[str, int]) -> ModelStatistics:
        """Return the counters of a model's ready versions.

        Args:
            name: name of the model.
            durations: histogram of request durations: counts by the upper bounds in seconds, as in
                Prometheus.

        Raises:
            NotFound, ModelNotReady, Forbidden: see `get`.
        """
        self.get(name)
        ready = [m for m in self._registry if m.name == name and m.state is State.READY]
        ready.sort(key=lambda model: model.version)
        counted = [
            VersionStatistics.model_validate(
                {**version_statistics(model), "pending": model.scheduler.pending}
            )
            for model in ready
        ]
        return ModelStatistics(name=name, durations=durations, versions=counted)

    def v2_statistics(self, name: str | None, version: int | None) -> dict[str, Any]:
        """Return the counters for the v2 protocol. Raise the errors of `statistics_json`."""
        return statistics_json(self.visible(), name, version)


def _check_key(name: str) -> None:
    """Raise Forbidden if the API key of the current request does not allow the model.

    Health probes need no key, so a request with any key may probe any model.
    """
    call = CALL.get()
    if call is not None and call.principal is not None and not call.probe:
        call.principal.check_model(name)


def _check_composing(principal: Principal, config: str) -> None:
    """Raise Forbidden if a configuration runs other models that the API key does not allow."""
    # Ignore an invalid configuration here, because the registry reports its error later.
    with suppress(InvalidModel):
        for name in parse_config(config).composing:
            principal.check_model(name)
