"""Reads a model to compare: an ONNX file, or the engine in a version folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fovea_engines.detect.heads.recognise import recognise
from fovea_engines.diff.network import Network
from fovea_engines.diff.onnx_network import OnnxNetwork
from fovea_engines.diff.openvino_network import OpenVinoNetwork
from fovea_engines.engine import Engine
from fovea_engines.graph.load import load
from fovea_engines.graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.repository.card import CARD_FILE
from fovea_engines.repository.repository import ModelRepository
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec


@dataclass(frozen=True, slots=True, eq=False)
class DiffModel:
    """A model before it runs.

    Attributes:
        metadata: the exporter's own key-value pairs.
        preprocess: preprocessing of an engine's card; None for a file.
        open: opens the network, for the inputs of one feed.
    """

    path: Path
    inputs: tuple[TensorSpec, ...]
    metadata: Mapping[str, str]
    family: str | None
    preprocess: PreprocessSpec | None
    open: Callable[[Mapping[str, Array]], Network]


def find_model(path: Path) -> DiffModel:
    """Read an .onnx file, a version's folder, or a model's folder, of which the latest counts."""
    return _from_folder(path.resolve()) if path.is_dir() else _from_file(path)


def _from_file(path: Path) -> DiffModel:
    model = load(path).proto
    inputs, outputs, metadata = graph_inputs(model), graph_outputs(model), metadata_of(model)
    return DiffModel(
        path=path,
        inputs=inputs,
        metadata=metadata,
        family=recognise(inputs, outputs, metadata).family,
        preprocess=None,
        open=partial(OnnxNetwork, model),
    )


def _from_folder(folder: Path) -> DiffModel:
    if not any((folder / file).is_file() for file in (CARD_FILE, *_NETWORKS)):
        folder = ModelRepository(folder.parent).folder(folder.name)
    # Opening verifies the file and sets its runtime up.
    with Engine.open(folder) as engine:
        card = engine.card
    path = folder / next(iter(card.files))
    if path.name not in _NETWORKS:
        raise UnsupportedModel(
            f"{path} shows no layers: compare the ONNX file that it was built from"
        )
    return DiffModel(
        path=path,
        inputs=card.inputs,
        metadata=card.metadata,
        family=card.family,
        preprocess=card.preprocess,
        open=partial(_NETWORKS[path.name], path),
    )


_NETWORKS: Mapping[str, Callable[[Path, Mapping[str, Array]], Network]] = {
    "model.onnx": lambda path, feed: OnnxNetwork(load(path).proto, feed),
    "model.xml": OpenVinoNetwork,
}
