"""Reads ONNX files and the layers of engines for the command `fovea inspect`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

from fovea_engines.backends.tensorrt.layers_file import LAYERS_FILE, PlanLayers
from fovea_engines.heads.image_inputs import origin_of
from fovea_engines.heads.metadata import labels_from_metadata
from fovea_engines.heads.presets import default_preprocess
from fovea_engines.repository.card import HeadCandidate
from fovea_engines.repository.repository import (
    ModelRepository,
)
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import (
    InvalidModel,
    InvalidOption,
    NotFound,
    UnsupportedModel,
)
from fovea_preprocess.spec import PreprocessSpec


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A description of an ONNX file from which an engine can be built.

    Attributes:
        inputs: inputs of the graph.
        outputs: outputs of the graph.
        family: head family; None if the outputs are not decoded.
        reason: text about the evidence for the family. If no family was recognised, the evidence
            against all families.
        task: task of the model, e.g. "detect".
        labels: class names by id; None if they are unknown.
        num_classes: number of classes; None if unknown.
        opset: version of ONNX's operator set.
        metadata: key-value pairs that the exporter wrote into the file.
        candidates: head families that the recognition considered, the best first; empty if --head
            set the family.
        head_doubt: text about the evidence against a family that --head set; None if there is no
            doubt.
        open: head families that fit equally well, so a build requires --head; empty if the head is
            clear.
        preprocess: preprocessing of images that a build would use; None if the model does not
            accept images.
        preprocess_from: text about the origin of `preprocess`.
        size: text about a dynamic input size; None if the size is fixed.
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
        """Return a text about the preprocessing and its origin."""
        if self.preprocess is None:
            return None
        return f"{self.preprocess.text}\n{self.preprocess_from}"


def read_model_file(path: Path, family: str | None = None) -> ModelFile:
    """Read an ONNX file, and recognise its head, without a build.

    Args:
        path: path of the ONNX file.
        family: head family; None means that the family is recognised.

    Raises:
        NotFound: the file does not exist.
        InvalidModel: the file is not an ONNX model.
        InvalidOption: the family does not fit the outputs.
    """
    # Imported here, because the import of onnx takes 0.3 s, and `fovea inspect` does not need onnx
    # for engines with a card.
    from fovea_engines.evaluation.observe import recognise_graph
    from fovea_engines.onnx_graph.load import load
    from fovea_engines.onnx_graph.normalise import open_size, pin_inputs
    from fovea_engines.onnx_graph.own_normalisation import own_normalisation
    from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of, opset_of

    if path.is_file() and path.suffix in (".plan", ".engine", ".xml", ".bin", ".json"):
        raise InvalidModel(
            f"{path} is not an ONNX file: to inspect an engine, give its folder, {path.parent}"
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
        return f"dynamic; a build uses {usual}, or another size with --size HxW"
    return (
        f"dynamic, but the model cannot run at {usual}: build with --size {needed[0]}x{needed[1]}"
    )


def read_layers(path: Path) -> PlanLayers:
    """Read the layers of a TensorRT engine from a version directory or a model directory.

    For a model directory, the layers of the newest version are read.

    Raises:
        NotFound: the directory has no list of layers.
        InvalidModel: the list is damaged.
    """
    path = path.resolve()
    if path.is_dir() and not (path / LAYERS_FILE).is_file():
        with suppress(NotFound, InvalidOption):
            path = ModelRepository(path.parent).folder(path.name)
    if not (path / LAYERS_FILE).is_file():
        raise NotFound(
            f"{path} has no list of layers: give the folder of a version with the backend "
            "tensorrt or tensorrt-rtx"
        )
    return PlanLayers.read(path / LAYERS_FILE)
