"""Reads models on disk, for `fovea inspect`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

from fovea_cardless.plain_engine import engine_files, open_plain
from fovea_engines.detect.heads.metadata import labels_from_metadata
from fovea_engines.detect.heads.preprocess import default_preprocess
from fovea_engines.detect.image_inputs import origin_of
from fovea_engines.repository.card import CARD_FILE, EngineCard, HeadCandidate
from fovea_engines.repository.composites import (
    StageRow,
    composite_file,
    faults_beside,
    read_composite,
)
from fovea_engines.repository.config_pbtxt import CONFIG_FILE, Ensemble, read_config
from fovea_engines.repository.repository import (
    FAILED_FOLDER,
    REPORT_FILE,
    ModelRepository,
    Standing,
)
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import (
    FoveaError,
    InvalidModel,
    InvalidOption,
    NotFound,
    UnsupportedModel,
)
from fovea_preprocess.mistakes import meant
from fovea_preprocess.spec import PreprocessSpec
from fovea_tensorrt.layers_file import LAYERS_FILE, PlanLayers


@dataclass(frozen=True, slots=True)
class ModelFile:
    """An ONNX file before it is built.

    Attributes:
        family: head family; None serves tensors only. `reason` is the evidence for or against.
        task: e.g. "detect".
        labels: class names by id; None where the metadata has none.
        num_classes: None where unknown.
        candidates: families that were considered, best first; empty where --head named one.
        head_doubt: what speaks against a family that --head named; None where nothing does.
        open: families between which a build asks to choose.
        preprocess: of an image, as a build would take it; None where the model takes no images.
        preprocess_from: its origin, for people.
        size: of a dynamic input, for people; None where it is fixed.
        opset: version of the default operator set.
        metadata: the exporter's own key-value pairs.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    family: str | None
    reason: str
    task: str
    labels: tuple[str, ...] | None
    num_classes: int | None
    opset: int
    metadata: dict[str, str]
    candidates: tuple[HeadCandidate, ...]
    head_doubt: str | None
    open: tuple[str, ...]
    preprocess: PreprocessSpec | None
    preprocess_from: str | None
    size: str | None

    @property
    def preprocess_text(self) -> str | None:
        """Describe how an image becomes an input row, and who says so."""
        if self.preprocess is None:
            return None
        return f"{self.preprocess.text}\n{self.preprocess_from}"


def read_model_file(path: Path, family: str | None = None) -> ModelFile:
    """Read an ONNX file without building it; a family that the user names is checked."""
    # Here, because onnx takes 0.3 s to import and engines with a card need none of it.
    from fovea_engines.evaluate.observe import recognise_graph
    from fovea_engines.graph.load import load
    from fovea_engines.graph.normalise import open_size, pin_inputs
    from fovea_engines.graph.own_normalisation import own_normalisation
    from fovea_engines.graph.tensors import graph_inputs, graph_outputs, metadata_of, opset_of

    if path.is_file() and path.suffix in (".plan", ".engine", ".xml", ".bin", ".json"):
        raise InvalidModel(
            f"{path} is no ONNX file: an engine is shown by its folder, {path.parent}"
        )
    model = load(path).proto
    inputs, outputs, metadata = graph_inputs(model), graph_outputs(model), metadata_of(model)
    trained = own_normalisation(model)
    head, needed = recognise_graph(model, family, trained)
    usual, preprocess = open_size(model), None
    with suppress(UnsupportedModel, InvalidOption):
        pin_inputs(model, needed)
        fields = {**head.own_preprocess, **trained}
        preprocess = default_preprocess(head.family, graph_inputs(model), metadata, trained=fields)
    return ModelFile(
        inputs=inputs,
        outputs=outputs,
        family=head.family,
        reason=head.reason,
        task=head.task,
        labels=labels_from_metadata(metadata, head.num_classes) or head.labels,
        num_classes=head.num_classes,
        opset=opset_of(model),
        metadata=metadata,
        candidates=tuple(starmap(HeadCandidate, head.candidates)),
        head_doubt=head.doubt,
        open=head.open,
        preprocess=preprocess,
        preprocess_from=None if preprocess is None else origin_of(inputs[0], head.preprocess_from),
        size=None if usual is None else _size_text(usual, needed),
    )


def _size_text(usual: str, needed: tuple[int, int] | None) -> str:
    if needed is None:
        return f"dynamic: built for {usual}; --size HxW for another"
    return f"dynamic, but {usual} cannot be computed: build with --size {needed[0]}x{needed[1]}"


@dataclass(frozen=True, slots=True)
class InspectedModel:
    """A version in a repository: its card, its parts, or the error of opening it.

    The parts are those of an ensemble, or the stages of a model that a file such as pipeline.toml
    makes of several. The version is 0 for a folder that is not named by a number. The `standing`
    follows from its config.pbtxt and history. `faults` are of other files in the model's folder.
    """

    name: str
    version: int
    engine: EngineCard | Ensemble | tuple[StageRow, ...] | FoveaError
    standing: Standing
    faults: tuple[str, ...] = ()
    reference: str = ""

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON types, with a "card", an "ensemble", "stages" or an "error"."""
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
    """Read every version under the folder of a version, a model or a repository."""
    path = path.resolve()
    if _is_version(path):
        version = int(path.name) if path.name.isdecimal() else 0
        standing = ModelRepository(path.parent.parent).standing(path.parent.name, version)
        return [_inspected(path, path.parent.name, version, standing)]
    if composite_file(path) is not None:
        return [_composite(path)]
    repository = ModelRepository(path)
    names = repository.models()
    made = [name for name in repository.folders() if composite_file(path / name) is not None]
    if any(p.name.isdecimal() for p in path.iterdir()):
        repository, names, made = ModelRepository(path.parent), (path.name,), []
    denied = [_denied(path / name) for name in repository.unreadable()]
    if not names and not made and not denied:
        raise NotFound(_refusals(path) or f"{path} has no model: make one with `fovea build`")
    engines = [
        _inspected(
            repository.folder(name, version), name, version, repository.standing(name, version)
        )
        for name in names
        if name not in made
        for version in repository.versions(name)
    ]
    others = [*denied, *(_composite(path / name) for name in made)]
    return sorted([*engines, *others], key=lambda model: model.name)


def _denied(folder: Path) -> InspectedModel:
    """Describe a model whose folder may not be read, which has no version to show."""
    error = InvalidModel(f"{folder} may not be read: mend its permissions")
    return InspectedModel(folder.name, 1, error, "not served", ())


def _inspected(folder: Path, name: str, version: int, standing: Standing) -> InspectedModel:
    engine = _read(folder)
    labels = engine.labels if isinstance(engine, EngineCard) else None
    return InspectedModel(name, version, engine, standing, (*faults_beside(folder.parent, labels),))


def _composite(folder: Path) -> InspectedModel:
    labels, reference = None, ""
    try:
        read = read_composite(folder)
        cards = {name: _card(folder.parent, name, (folder.name,)) for name in read.models}
        labels = cards[read.models[0]].labels
        stages: tuple[StageRow, ...] | FoveaError = read.described(cards)
        reference = read.reference
    except FoveaError as error:
        stages = error
    faults = (*faults_beside(folder, labels),)
    return InspectedModel(folder.name, 1, stages, "current", faults, reference)


def _card(root: Path, name: str, above: tuple[str, ...]) -> EngineCard:
    """Read the card of a model, or of the one that answers for it, as the server finds them."""
    repository = ModelRepository(root)
    if name in above:
        raise InvalidModel(f"{' -> '.join((*above, name))} is a circle: name another model")
    if name in repository.folders() and composite_file(root / name) is not None:
        # All of them, as the server finds a circle through any.
        models = read_composite(root / name).models
        first, *_ = [_card(root, each, (*above, name)) for each in models]
        return first
    served = repository.served_or_none(name) if name in repository.folders() else ()
    if not served:
        raise InvalidModel(f"there is no model '{name}' to run{meant(name, repository.models())}")
    found = _read(repository.folder(name, served[-1]))
    if isinstance(found, EngineCard):
        return found
    reason = found if isinstance(found, FoveaError) else "it is an ensemble"
    raise InvalidModel(f"model '{name}' cannot be a stage: {reason}")


def read_layers(path: Path) -> PlanLayers:
    """Read the layers of a TensorRT engine, of a version's folder or the newest of a model's."""
    path = path.resolve()
    if path.is_dir() and not (path / LAYERS_FILE).is_file():
        with suppress(NotFound, InvalidOption):
            path = ModelRepository(path.parent).folder(path.name)
    if not (path / LAYERS_FILE).is_file():
        raise NotFound(
            f"{path} has no list of layers, which engines of --backend tensorrt and tensorrt-rtx "
            "have: give such a version's folder"
        )
    return PlanLayers.read(path / LAYERS_FILE)


def _refusals(path: Path) -> str:
    refusals = []
    for folder in sorted([*path.glob(FAILED_FOLDER), *path.glob(f"*/{FAILED_FOLDER}")]):
        with suppress(NotFound):
            card = EngineCard.read(folder / CARD_FILE)
            refusals.append(
                f"{card.name} has no version, as its last build was refused: {card.refused}. "
                f"{folder / REPORT_FILE} has the report"
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
        return InvalidModel(f"{error.filename} may not be read: mend its permissions")
    session.close()
    return card
