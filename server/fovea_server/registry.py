"""The models that are being served."""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from fovea_engines.repository import ModelRepository
from fovea_preprocess.errors import InvalidModel, NotFound
from fovea_server.config import ModelConfig
from fovea_server.model import ServedModel, State
from fovea_server.settings import Settings

log = logging.getLogger(__name__)


class Registry:
    """Finds models in the repository, loads them, gives them out.

    Of each model the newest version is served, and older ones that its `config.pbtxt` names in
    `version_policy`, as Triton does.

    Raises:
        NotFound: the repository is not a folder.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._repository = ModelRepository(settings.model_repository)
        self._repository.models()
        self._models: dict[str, dict[int, ServedModel]] = {}
        self._scanned = False
        self._closing = False
        self._loader = threading.Thread(target=self._load_all, name="load")

    def start(self) -> None:
        """Begin to load what is in the repository, and return at once; see `ready`."""
        self._loader.start()

    def _load_all(self) -> None:
        try:
            for name in self._repository.models():
                self._models[name] = self._found(name)
        except OSError as error:
            log.error("the repository cannot be read: %s", error)
        self._scanned = True
        if not self._models:
            log.warning("%s", self.reason)
        log.info("loading %d models of %s", len(self._models), self._repository.root)
        with ThreadPoolExecutor(2, thread_name_prefix="load") as pool:
            for _ in pool.map(self._load, self):
                pass
        # Last, and one by one: it may take minutes, and what others can serve waits for none.
        for model in self:
            if not self._closing:
                model.rebuild()
        # What lives as long as the process need not be looked at by every later collection, and
        # what loading has freed need not stay in the allocator.
        gc.collect()
        gc.freeze()
        ctypes.CDLL(None).malloc_trim(0)
        ready = sum(model.state is State.READY for model in self)
        log.info("%d of %d models are ready", ready, len(list(self)))

    def _load(self, model: ServedModel) -> None:
        if not self._closing:
            model.load()

    def _found(self, name: str) -> dict[int, ServedModel]:
        root = self._repository.root / name
        versions = self._repository.versions(name)
        config, fault = ModelConfig(), None
        try:
            config = ModelConfig.read(root)
        except (InvalidModel, OSError) as error:
            fault = str(error)
        if not config.served(versions):
            config, fault = ModelConfig(), "its version_policy names no version that is there"
        models = {
            version: ServedModel(name, version, root / str(version), self._settings, config)
            for version in config.served(versions)
        }
        if fault:
            for model in models.values():
                model.fail(fault)
        return models

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in list(self._models.values()):
            yield from versions.values()

    def get(self, name: str, version: int | None = None) -> ServedModel:
        """The model, of the newest version unless one is asked for.

        Raises:
            NotFound: there is no such model or version; the message lists what there is.
        """
        versions = self._models.get(name)
        if not versions:
            known = ", ".join(sorted(n for n, v in self._models.items() if v)) or "none"
            raise NotFound(f"there is no model '{name}'; served models: {known}")
        if version is None:
            return versions[max(versions)]
        if version not in versions:
            known = ", ".join(map(str, sorted(versions)))
            raise NotFound(f"model '{name}' has no version {version}; served versions: {known}")
        return versions[version]

    def find(self, name: str, version: int | None = None) -> ServedModel:
        """As `get`, in Triton's words, and only models that can answer now.

        Raises:
            NotFound: there is no such model or version, or none of it can answer.
        """
        versions = self._models.get(name)
        if not versions:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if version is not None and version not in versions:
            raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        ready = [v for v, model in versions.items() if model.state is State.READY]
        if not ready:
            raise NotFound(f"Request for unknown model: '{name}' has no available versions")
        return versions[max(ready) if version is None else version]

    @property
    def reason(self) -> str:
        """Why not every model is ready, in a sentence; empty when they are."""
        if not self._scanned:
            return "the repository is being read"
        if not self._models:
            return (
                f"there is no model in {self._repository.root} (NAME/VERSION/model.*): "
                "make one with `fovea build`, then start again"
            )
        waiting = (f"{m.name}: {m.reason}" for m in self if m.state is not State.READY)
        return "; ".join(waiting)

    def close(self) -> None:
        """Drain and unload everything; what is not loaded yet never will be."""
        self._closing = True
        for model in self:
            model.cancel()
        if self._loader.ident is not None:
            self._loader.join()
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda m: m.close(self._settings.exit_timeout_secs), self):
                pass
