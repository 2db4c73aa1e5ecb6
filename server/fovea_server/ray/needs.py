"""Resources of the replicas of each model, from the model's card.json and configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fovea_engines.backends.registry import backends_for, get_backend
from fovea_engines.plain_engine import engine_files
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.model_config import ModelConfig
from fovea_preprocess.errors import BuildError, InvalidModel, NotFound
from fovea_server.models.config.config import load_config
from fovea_server.models.source import Repositories
from fovea_server.settings import Settings
from fovea_server.stores.address import Address
from fovea_server.stores.store import Store


def outline(address: Address, folder: Path) -> None:
    """Copy the card.json and .pbtxt files of a store. Other files are created without content.

    Raises:
        InvalidModel: the keys of a model are not valid paths.
        NotFound, Unavailable, InvalidOption: see `Store`.
    """
    store = Store(address)
    for model in store.models():
        if model.problem:
            raise InvalidModel(f"model {model.name} of {address}: {model.problem}")
        for file in model.files:
            path = folder / file.key
            path.parent.mkdir(parents=True, exist_ok=True)
            describes = path.name == CARD_FILE or path.suffix == ".pbtxt"
            path.write_bytes(b"".join(store.read(file)) if describes else b"")


@dataclass(frozen=True, slots=True)
class Needs:
    """Resources and limits of a model's replica.

    Attributes:
        cores: number of CPU cores for the engine. For an engine on a GPU, these cores decode
            images.
        gpus: number of GPUs; 0 for an engine on the CPU.
        at_once: number of images that the replica processes at the same time.
        below: names of the models that an ensemble runs, directly or through another ensemble.
        keeps_state: True for sequences. One replica must then receive all requests, and each
            request exactly once.
    """

    cores: int
    gpus: int
    at_once: int
    below: tuple[str, ...]
    keeps_state: bool


def read_needs(settings: Settings) -> dict[str, Needs]:
    """Return the needs of all models in the repositories, by name.

    Only card.json and configuration files are fetched from a remote store.

    Raises:
        NotFound: a repository does not exist or has no model.
        InvalidModel: a model cannot be served.
        Unavailable, InvalidOption: see `Store`.
    """
    with TemporaryDirectory() as temporary:
        folders = []
        for number, place in enumerate(settings.model_repository):
            folder = place if isinstance(place, Path) else Path(temporary) / str(number)
            if isinstance(place, Address):
                outline(place, folder)
            folders.append(folder)
        return _Reading(Repositories(folders), settings).needs()


class _Reading:
    def __init__(self, repositories: Repositories, settings: Settings) -> None:
        self._repositories = repositories
        self._settings = settings
        self._names = repositories.models()
        self._configs = {name: self._config(name) for name in self._names}

    def needs(self) -> dict[str, Needs]:
        if not self._names:
            raise NotFound(f"the repository has no model: {self._repositories.advice()}")
        return {name: self._needs_of(name) for name in self._names}

    def _config(self, name: str) -> ModelConfig:
        settings = self._settings
        try:
            return load_config(
                self._repositories.folder(name),
                name,
                variant=settings.model_config_name,
                required=settings.disable_auto_complete_config,
            )
        except BuildError as error:
            raise InvalidModel(
                f"model {name} cannot be served: {error}; correct it, or remove it from the "
                "repository"
            ) from error

    def _needs_of(self, name: str) -> Needs:
        config = self._configs[name]
        below = tuple(sorted(self._list_composing(name, ())))
        if config.composing:
            parts = [self._needs_of(part) for part in below if not self._configs[part].composing]
            cores = max((part.cores for part in parts), default=1)
            gpus = max((part.gpus for part in parts), default=0)
            at_once = max((part.at_once for part in parts), default=1)
            keeps_state = any(part.keeps_state for part in parts)
            return Needs(cores, gpus, at_once, below, keeps_state)
        on_gpu, rows = self._engine(name, config)
        cores = config.threads or 1
        keeps_state = config.sequence_batching is not None
        return Needs(cores, int(on_gpu), rows if on_gpu else cores, below, keeps_state)

    def _list_composing(self, name: str, above: tuple[str, ...]) -> set[str]:
        found: set[str] = set()
        for part in self._configs[name].composing:
            if part not in self._configs:
                raise InvalidModel(
                    f"ensemble {name} runs model {part}, which is not in the repository: add it"
                )
            if part in (name, *above):
                raise InvalidModel(
                    f"ensemble {name} runs {part}, which runs the ensemble again: remove one step"
                )
            found |= {part, *self._list_composing(part, (name, *above))}
        return found

    def _engine(self, name: str, config: ModelConfig) -> tuple[bool, int]:
        """Return whether the newest served version uses a GPU, and the version's batch size."""
        folder = self._repositories.folder(name)
        versions = (int(p.name) for p in folder.iterdir() if p.is_dir() and p.name.isdecimal())
        newest = folder / str(config.served(sorted(versions))[-1])
        if (newest / CARD_FILE).exists():
            card = EngineCard.read(newest / CARD_FILE)
            return get_backend(card.backend).on_gpu, max(1, card.max_batch)
        named = (config.default_model_filename, *engine_files())
        file = next((each for each in named if each and (newest / each).exists()), "")
        [backend, *_] = [get_backend(config.backend)] if config.backend else backends_for(file)
        return backend.on_gpu, max(1, config.max_batch_size)
