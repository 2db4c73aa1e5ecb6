"""The models that are being served."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from fovea_engines.plural import counted
from fovea_preprocess.errors import (
    FoveaError,
    InvalidModel,
    InvalidRequest,
    LoadFailed,
    ModelNotReady,
    NotFound,
    ShuttingDown,
    Unavailable,
)
from fovea_server.models.config.files import check_engine_files, model_of_files
from fovea_server.models.index import IndexEntry, make_index
from fovea_server.models.loader import Loader
from fovea_server.models.model import ServedModel, State
from fovea_server.models.polling import poll
from fovea_server.models.repositories import Repositories
from fovea_server.models.slot import trim
from fovea_server.models.source import Source, check_name
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.settings import ModelControlMode, Settings

log = logging.getLogger(__name__)


class Registry:
    """Finds models in the repositories, loads them, and looks them up.

    As in Triton, `model_control_mode` of the settings decides which models are loaded and when, and
    `version_policy` of a model which of its versions.

    Attributes:
        cache: the response cache of all models; None where there is none.
        started: every model of the start has been tried.

    Raises:
        NotFound: a repository is not a folder.
        InvalidOption: the setting of the cache cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._mode = settings.model_control_mode
        self._repositories = Repositories(settings.model_repository)
        self._repositories.models()
        given = settings.cache_config
        self.cache = None if given is None else ResponseCache.parse(given)
        self._loader = Loader(self._repositories, settings, self.find, self.cache)
        self._slots = self._loader.slots
        # Models of the start, which decide if the server is ready; later requests may remove them.
        self._startup: set[str] = set()
        self._scanned = self.started = False
        self._thread = threading.Thread(target=self._run, name="load")

    def start(self) -> None:
        """Begin to load the models of the start, and return at once; see `ready`."""
        self._thread.start()

    def _run(self) -> None:
        try:
            self._load_first()
        except (FoveaError, OSError) as error:
            log.error("a repository cannot be read: %s", error)
        self._scanned = self.started = True
        self._log_start()
        # Objects that live as long as the process need not be scanned by every collection, and
        # memory that loading has freed need not stay in the allocator.
        gc.collect()
        gc.freeze()
        trim()
        if self._mode is ModelControlMode.POLL:
            while not self._loader.closing.wait(self._settings.repository_poll_secs):
                poll(self._loader, self._repositories, self._startup)

    def _log_start(self) -> None:
        """Log how the start went."""
        ready = sum(bool(slot.ready) for slot in list(self._slots.values()))
        failed = [name for name in sorted(self._startup) if self._slots[name].unserved()]
        if failed:
            told = "%s ready, %d failed: %s (see above)"
            log.error(told, counted(ready, "model"), len(failed), ", ".join(failed))
        else:
            log.info("%s ready", counted(ready, "model"))

    def _load_first(self) -> None:
        names: tuple[str, ...] = self._settings.load_model
        if self._mode is not ModelControlMode.EXPLICIT or "*" in names:
            names = self._repositories.models()
        self._startup = set(names)
        log.info("loading %s of %s", counted(len(names), "model"), self._repositories)
        self._loader.load_all(names, begun=self._seen)
        # Last: it may take minutes, and no other model should wait for it.
        self._loader.rebuild()

    def _seen(self) -> None:
        self._scanned = True
        if self.reason and not self._slots:
            log.warning("%s: %s", self._repositories, self.reason)

    def __contains__(self, name: object) -> bool:
        return name in self._slots

    def __iter__(self) -> Iterator[ServedModel]:
        """Iterate over every version that is loaded, or is being loaded or unloaded."""
        for slot in list(self._slots.values()):
            for model in list(slot.versions.values()):
                if model.is_live:
                    yield model

    def get(self, name: str, version: int | None = None) -> ServedModel:
        """Look a model up; for a version of None, the newest that can answer.

        Raises:
            NotFound: there is no such model or version; the message lists those that exist.
            ModelNotReady: the model exists, but none of its versions could be read.
        """
        slot = self._slots.get(name)
        if slot is None or not (slot.versions or slot.fault):
            known = ", ".join(sorted(n for n, s in self._slots.items() if s.ready)) or "none"
            raise NotFound(f"there is no model '{name}'; served models: {known}")
        if not slot.versions:
            raise ModelNotReady(f"model '{name}': {slot.fault}")
        if version is None:
            return slot.versions[max(slot.ready or slot.versions)]
        if version not in slot.versions:
            known = ", ".join(map(str, slot.ready)) or "none"
            raise NotFound(f"model '{name}' has no version {version}; served versions: {known}")
        return slot.versions[version]

    def find(self, name: str, version: int | None = None) -> ServedModel:
        """Look a model up that can answer now, with Triton's messages.

        Raises:
            NotFound: there is no such model or version, or no version can answer.
            ModelNotReady: that version cannot answer now.
        """
        slot = self._slots.get(name)
        if slot is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        model = slot.newest if version is None else slot.versions.get(version)
        if model is not None and model.state is State.READY:
            return model
        about = f"Request for unknown model: '{name}' "
        if version is None:
            if ready := slot.ready:
                return slot.versions[ready[-1]]
            raise NotFound(f"{about}has no available versions")
        if model is None:
            raise NotFound(f"{about}version {version} is not found")
        raise ModelNotReady(f"{about}version {version} is not at ready state")

    def versions(self, name: str) -> tuple[int, ...]:
        """List the versions of a model that can answer, ascending."""
        slot = self._slots.get(name)
        return slot.ready if slot is not None else ()

    def index(self, ready: bool = False) -> list[IndexEntry]:
        """List every model of the repository, or every version that can answer, by name."""
        names = () if ready else self._repositories.folders()
        return make_index(dict(self._slots), names, ready=ready)

    def entries(self, name: str) -> list[IndexEntry]:
        """List the entries of `index` for one model."""
        slot = self._slots.get(name)
        return make_index({} if slot is None else {name: slot}, (name,), ready=False)

    @property
    def ready(self) -> bool:
        """True if all models of the start are ready, and no model has died.

        Models that requests load and unload later do not change this.
        """
        return not self.reason

    @property
    def reason(self) -> str:
        """The reason why the server is not ready, in a sentence; empty when it is."""
        if not self._scanned:
            return "the repository is being read"
        if not self._settings.strict_readiness:
            return "" if self.started else "models are being loaded"
        if not self._slots and self._mode is ModelControlMode.NONE:
            return (
                "there is no model in the repository (NAME/VERSION/model.*): "
                "make one with `fovea build`, then start again"
            )
        return "; ".join(self.unserved)

    @property
    def unserved(self) -> list[str]:
        """Models that the start could not load, and those that have died, each with its reason."""
        unserved = [f"{m.name}: {m.failure}" for m in self if m.failure]
        for name in sorted(self._startup):
            if (slot := self._slots.get(name)) is not None:
                unserved += slot.unserved()
        return list(dict.fromkeys(unserved))

    def load(
        self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load a model, or reload it if something has changed; blocks.

        Args:
            name: of the model.
            config: JSON that replaces config.pbtxt until the next load.
            files: path below the model's folder -> content; they replace the folder.

        Raises:
            Unavailable: not in this mode; or the server is stopping.
            LoadFailed: there is no such model, or its configuration or files cannot be used.
            InvalidRequest: the model cannot be served; versions that were served stay in service.
        """
        self._check_mode(f"load model {name!r}")
        check_name(name)
        with ExitStack() as stack:
            try:
                source = self._source(stack, name, config, files or {})
            except (FoveaError, OSError) as error:
                about = f"failed to load '{name}', failed to poll from model repository"
                if isinstance(error, NotFound) or config is not None:
                    log.error("model %s cannot be loaded: %s", name, error)
                else:
                    self._loader.refuse(name, error)
                # Clients match Triton's text, which ends here; the reason is for people.
                reason = "" if isinstance(error, NotFound) else f": {error}"
                raise LoadFailed(about + reason) from error
            try:
                self._loader.load(name, source)
            except InvalidModel as error:
                raise InvalidRequest(f"load failed for model '{name}': {error}\n") from error
            finally:
                self._startup.discard(name)

    def _source(
        self, stack: ExitStack, name: str, config: str | None, files: Mapping[str, bytes]
    ) -> Source:
        if files and config is None:
            raise InvalidModel("Load parameter 'config' must be specified for model file override")
        if not files:
            return Source.read(self._repositories.folder(name), name, self._settings, config)
        folder = stack.enter_context(model_of_files(name, files))
        source = Source.read(folder, name, self._settings, config)
        check_engine_files(source.config)
        return source

    def unload(self, name: str, *, dependents: bool = False) -> None:
        """Unload a model after its accepted requests; blocks.

        Args:
            name: of the model; nothing happens if it is not loaded.
            dependents: also unload the models that only this ensemble runs.

        Raises:
            Unavailable: not in this mode; or the server is stopping.
        """
        self._check_mode(f"unload model {name!r}")
        self._startup.discard(name)
        self._loader.unload(name, dependents=dependents)

    def _check_mode(self, asked: str) -> None:
        if self._mode is not ModelControlMode.EXPLICIT:
            # Triton gives this answer in every mode: clients match that text.
            log.warning(
                "a request to %s was refused: requests may load and unload models only with "
                "--model-control-mode=explicit, and it is %s",
                asked,
                self._mode.value,
            )
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")
        if self._loader.closing.is_set():
            raise ShuttingDown("the server is stopping")

    def close(self) -> None:
        """Drain and unload everything; models that are not loaded yet never will be."""
        self._loader.closing.set()
        for slot in list(self._slots.values()):
            slot.cancel()
        if self._thread.ident is not None:
            self._thread.join()
        self._loader.close()
