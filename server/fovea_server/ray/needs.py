"""Needs of the replicas of each model, by its card and its configuration."""

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
    """Copy the cards and configurations of a store; in the place of other files are empty ones.

    Raises:
        InvalidModel: a model's keys cannot be paths.
        NotFound, Unavailable, InvalidOption: as `Store`.
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
    """Resources and limits of a replica of a model.

    Attributes:
        cores: that its engine computes with; for an engine of a GPU, that decode images ahead.
        gpus: 0 for an engine of a CPU.
        at_once: images that it computes at a time.
        below: the models that an ensemble runs, and those that they run.
        keeps_state: it has sequences, whose requests all go to one replica, each once.
    """

    cores: int
    gpus: int
    at_once: int
    below: tuple[str, ...]
    keeps_state: bool


def read_needs(settings: Settings) -> dict[str, Needs]:
    """Read what the models of the repositories need, by name.

    Of a repository in a store only cards and configurations are fetched.

    Raises:
        NotFound: there is no model, or no such repository.
        InvalidModel: a model cannot be served.
        Unavailable, InvalidOption: as `Store`.
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
            raise NotFound(f"there is no model in the repository: {self._repositories.advice()}")
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
            if part not in self._configs or part in (name, *above):
                raise InvalidModel(
                    f"ensemble {name} runs {part}, which is not in the repository or runs {name}"
                )
            found |= {part, *self._list_composing(part, (name, *above))}
        return found

    def _engine(self, name: str, config: ModelConfig) -> tuple[bool, int]:
        """Return whether the newest served version takes a GPU, and the rows of one call."""
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
