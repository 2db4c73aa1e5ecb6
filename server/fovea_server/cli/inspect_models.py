"""Reads the models of a directory for `fovea inspect`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fovea_engines.plain_engine import engine_files, open_plain
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.config_pbtxt import CONFIG_FILE, Ensemble, read_config
from fovea_engines.repository.repository import (
    FAILED_FOLDER,
    REPORT_FILE,
    ModelRepository,
    Standing,
)
from fovea_preprocess.errors import (
    FoveaError,
    InvalidModel,
    NotFound,
)
from fovea_preprocess.mistakes import suggest
from fovea_server.models.model_folder import find_faults
from fovea_server.pipelines.recipe import Pipeline, StageRow, is_pipeline


@dataclass(frozen=True, slots=True)
class InspectedModel:
    """A version of a model in a repository.

    Attributes:
        name: name of the model.
        version: number of the version; 0 if the directory's name is not a number.
        engine: the card of the engine, the ensemble, or the stages of the pipeline; the error if
            they cannot be read.
        standing: whether the version is served, and whether it is current, by config.pbtxt and the
            history.
        faults: faults in the other files of the model's directory.
        reference: description of a pipeline's reference; "" if it has none.
    """

    name: str
    version: int
    engine: EngineCard | Ensemble | tuple[StageRow, ...] | FoveaError
    standing: Standing
    faults: tuple[str, ...] = ()
    reference: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types, with the key "card", "ensemble", "stages" or "error"."""
        entry: dict[str, Any] = {
            "name": self.name,
            "version": self.version,
            "served": self.standing != "not served",
            "current": self.standing == "current",
            **({"faults": self.faults} if self.faults else {}),
        }
        if isinstance(self.engine, EngineCard):
            return entry | {"card": self.engine.to_json()}
        if isinstance(self.engine, Ensemble):
            return entry | {"ensemble": self.engine.to_json()}
        if isinstance(self.engine, tuple):
            return entry | {"stages": self.engine, "reference": self.reference or None}
        return entry | {"error": {"code": self.engine.code, "message": str(self.engine)}}


def read_folder(path: Path) -> list[InspectedModel]:
    """Read all versions in the directory of a version, of a model or of a repository."""
    path = path.resolve()
    if _is_version(path):
        version = int(path.name) if path.name.isdecimal() else 0
        standing = ModelRepository(path.parent.parent).standing(path.parent.name, version)
        return [_inspect_version(path, path.parent.name, version, standing)]
    if is_pipeline(path):
        return [_pipeline(path)]
    repository = ModelRepository(path)
    names = repository.models()
    made = [name for name in repository.folders() if is_pipeline(path / name)]
    if any(p.name.isdecimal() for p in path.iterdir()):
        repository, names, made = ModelRepository(path.parent), (path.name,), []
    denied = [_describe_unreadable(path / name) for name in repository.unreadable()]
    if not names and not made and not denied:
        raise NotFound(_refusals(path) or f"{path} has no model: build one with `fovea build`")
    engines = [
        _inspect_version(
            repository.folder(name, version), name, version, repository.standing(name, version)
        )
        for name in names
        if name not in made
        for version in repository.versions(name)
    ]
    others = [*denied, *(_pipeline(path / name) for name in made)]
    return sorted([*engines, *others], key=lambda model: model.name)


def _describe_unreadable(folder: Path) -> InspectedModel:
    """Describe a model whose directory this user may not read, so that its versions are unknown."""
    error = InvalidModel(f"you have no permission to read {folder}: correct its permissions")
    return InspectedModel(folder.name, 1, error, "not served", ())


def _inspect_version(folder: Path, name: str, version: int, standing: Standing) -> InspectedModel:
    engine = _read(folder)
    labels = engine.labels if isinstance(engine, EngineCard) else None
    return InspectedModel(name, version, engine, standing, (*find_faults(folder.parent, labels),))


def _pipeline(folder: Path) -> InspectedModel:
    labels, reference = None, ""
    try:
        read = Pipeline.read(folder)
        cards = {name: _card(folder.parent, name, (folder.name,)) for name in read.models}
        labels = cards[read.models[0]].labels
        stages: tuple[StageRow, ...] | FoveaError = read.describe(cards)
        reference = read.reference
    except FoveaError as error:
        stages = error
    faults = (*find_faults(folder, labels),)
    return InspectedModel(folder.name, 1, stages, "current", faults, reference)


def _card(root: Path, name: str, above: tuple[str, ...]) -> EngineCard:
    """Read the card of a model; for a pipeline, return the card of its first model."""
    repository = ModelRepository(root)
    if name in above:
        raise InvalidModel(
            f"the pipelines run each other ({' -> '.join((*above, name))}): replace one of these "
            "models"
        )
    if name in repository.folders() and is_pipeline(root / name):
        # The cards of all models are read, because any of the models may be a pipeline that leads
        # back here.
        models = Pipeline.read(root / name).models
        first, *_ = [_card(root, each, (*above, name)) for each in models]
        return first
    served = repository.served_or_none(name) if name in repository.folders() else ()
    if not served:
        raise InvalidModel(
            f"a stage runs the model '{name}', which does not "
            f"exist{suggest(name, repository.models())}"
        )
    found = _read(repository.folder(name, served[-1]))
    if isinstance(found, EngineCard):
        return found
    reason = found if isinstance(found, FoveaError) else "it is an ensemble"
    raise InvalidModel(f"model '{name}' cannot be a stage: {reason}")


def _refusals(path: Path) -> str:
    refusals = []
    for folder in sorted([*path.glob(FAILED_FOLDER), *path.glob(f"*/{FAILED_FOLDER}")]):
        with suppress(NotFound):
            card = EngineCard.read(folder / CARD_FILE)
            refusals.append(
                f"{card.name} has no version, because its last build was rejected: "
                f"{card.refused}. The report is in {folder / REPORT_FILE}"
            )
    return "; ".join(refusals)


def _is_version(path: Path) -> bool:
    if any((path / file).is_file() for file in (CARD_FILE, *engine_files())):
        return True
    return path.name.isdecimal() and (path.parent / CONFIG_FILE).is_file()


def _read(folder: Path) -> EngineCard | Ensemble | FoveaError:
    try:
        if (folder / CARD_FILE).is_file():
            return EngineCard.read(folder / CARD_FILE)
        config = read_config(folder.parent / CONFIG_FILE)
        if config.platform == "ensemble":
            return Ensemble.of(config, folder.parent.name)
        card, session = open_plain(folder)
    except FoveaError as error:
        return error
    except PermissionError as error:
        return InvalidModel(
            f"you have no permission to read {error.filename}: correct its permissions"
        )
    session.close()
    return card
