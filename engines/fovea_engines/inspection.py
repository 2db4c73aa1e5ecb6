"""What is known of a model on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fovea_engines.backends.base import TensorSpec
from fovea_engines.card import CARD_FILE, EngineCard
from fovea_engines.plain import open_plain
from fovea_engines.repository import ModelRepository
from fovea_preprocess.errors import NotFound


@dataclass(frozen=True, slots=True)
class ModelFile:
    """What an ONNX file says of itself before it is built.

    Attributes:
        inputs: tensors that have to be fed.
        outputs: tensors that come back.
        family: head family; None serves tensors only.
        reason: why that family, or why none.
        task: e.g. "detect".
        labels: class names by id; None where the metadata has none.
        opset: version of the default operator set.
        metadata: the exporter's own key-value pairs.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    family: str | None
    reason: str
    task: str
    labels: tuple[str, ...] | None
    opset: int
    metadata: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def read_model_file(path: Path, family: str | None = None) -> ModelFile:
    """Read an ONNX file without building it.

    Args:
        path: the file.
        family: what the user says it is; None recognises it.

    Raises:
        NotFound: there is no such file.
        InvalidModel: it is not ONNX.
        UnsupportedModel: `family` contradicts the model.
    """
    # Here, because onnx takes 0.3 s to import and engines with a card need none of it.
    from fovea_engines.graph.load import load
    from fovea_engines.graph.tensors import graph_inputs, graph_outputs, metadata_of
    from fovea_engines.heads.metadata import labels_from_metadata
    from fovea_engines.heads.recognise import recognise

    model = load(path).proto
    inputs, outputs, metadata = graph_inputs(model), graph_outputs(model), metadata_of(model)
    head = recognise(inputs, outputs, metadata, family)
    return ModelFile(
        inputs=inputs,
        outputs=outputs,
        family=head.family,
        reason=head.reason,
        task=head.task,
        labels=labels_from_metadata(metadata, head.num_classes),
        opset=next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0),
        metadata=metadata,
    )


def read_cards(path: Path) -> Iterator[tuple[int, EngineCard]]:
    """Version and card of every engine under a folder.

    Args:
        path: a version's folder, a model's or a repository.

    Raises:
        NotFound: no engine is there.
        InvalidModel: a card or an engine is damaged.
    """
    path = path.resolve()
    if any((path / file).is_file() for file in (CARD_FILE, "model.onnx", "model.xml")):
        yield int(path.name) if path.name.isdecimal() else 0, _read_card(path)
        return
    if not path.is_dir():
        raise NotFound(f"{path} is not there: give an .onnx file or a folder of engines")
    repository = ModelRepository(path)
    names = repository.models()
    if any(p.name.isdecimal() for p in path.iterdir()):
        repository, names = ModelRepository(path.parent), (path.name,)
    if not names:
        raise NotFound(f"{path} has no model: make one with `fovea build`")
    for name in names:
        for version in repository.versions(name):
            yield version, _read_card(repository.folder(name, version))


def _read_card(folder: Path) -> EngineCard:
    if (folder / CARD_FILE).is_file():
        return EngineCard.read(folder / CARD_FILE)
    card, session = open_plain(folder)
    session.close()
    return card
