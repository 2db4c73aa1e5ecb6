"""Descriptions of models as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model.

    Attributes:
        version: number of the version, as text.
        state: "LOADING", "READY", "UNLOADING" or "UNAVAILABLE".
        ready: True if the version accepts requests.
        reason: error of a version that is not ready, or of its last reload; otherwise None.
        current: True if the version answers requests that name no version.
    """

    version: str
    state: str
    ready: bool
    reason: str | None
    current: bool = False


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One model of the server's list. A field is None as long as its value is unknown.

    Some fields are unknown until a version of the model is ready.

    Attributes:
        name: name of the model.
        version: version that the other fields describe. This is the version that answers requests,
            or the newest version if none is ready.
        ready: True if this version accepts requests.
        reason: error of a version that is not ready; otherwise None.
        versions: all versions in ascending order.
        task: e.g. "detect" or "classify"; "tensors" if the outputs are not decoded.
        accepts_images: True if `Client.predict` supports the model.
        backend: e.g. "openvino"; None for an ensemble.
        precision: "fp32", "bf16", "fp16" or "int8"; None for an ensemble.
        label_count: number of class names; 0 if the model has none.
    """

    name: str
    version: str | None
    ready: bool
    reason: str | None
    versions: tuple[ModelVersion, ...]
    task: str | None
    accepts_images: bool
    backend: str | None
    precision: str | None
    label_count: int


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """An input or output of a model.

    Attributes:
        name: name of the tensor.
        datatype: datatype in the v2 protocol, e.g. "FP32".
        shape: size of each dimension; -1 if the dimension has no fixed size.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Model(ModelSummary):
    """Description of one version of a model.

    Attributes:
        max_batch_size: largest batch size; 0 if the model has no batch dimension.
        inputs: inputs of the model.
        outputs: outputs of the model.
        preprocess: preprocessing of images; None if the model does not accept images.
        labels: class names by id; None if the model has none.
        card: content of the card.json that `fovea build` wrote; None if there is none.
        card_reason: reason why there is no card; None if there is one.
        made_of: names of the models in an ensemble or pipeline; empty for other models.
    """

    max_batch_size: int
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    preprocess: Mapping[str, Any] | None
    labels: tuple[str, ...] | None
    card: Mapping[str, Any] | None
    card_reason: str | None
    made_of: tuple[str, ...] = ()

    def __repr__(self) -> str:
        words = [self.task, self.backend, self.precision]
        shapes = (f"{each.name} {list(each.shape)}" for each in self.inputs)
        state = "ready" if self.ready else f"not ready: {self.reason}"
        about = ", ".join([*filter(None, words), f"{self.label_count} classes", *shapes, state])
        return f"<Model {self.name!r} version {self.version}: {about}>"
