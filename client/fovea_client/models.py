"""Defines descriptions of models as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model.

    Attributes:
        state: "LOADING", "READY", "UNLOADING" or "UNAVAILABLE".
        ready: True if it takes requests.
        reason: the error of an unready version or of its last reload; None otherwise.
        current: True if it answers requests that name no version.
    """

    version: str
    state: str
    ready: bool
    reason: str | None
    current: bool = False


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One model of the list. Fields that are unknown while a model is not ready are None.

    Attributes:
        version: the described version: the current one, or the newest if none is ready.
        ready: True if that version takes requests.
        reason: the error of an unready version; None otherwise.
        versions: all of them, ascending.
        task: e.g. "detect" or "classify"; "tensors" where the outputs are not decoded.
        accepts_images: True if `Client.predict` works with it.
        backend: e.g. "openvino"; also None for an ensemble.
        precision: "fp32", "bf16", "fp16" or "int8"; also None for an ensemble.
        label_count: 0 where the model has no labels.
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
    """An input or output of a model; a dimension of any size is -1.

    The v2 protocol names the datatype, e.g. "FP32".
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Model(ModelSummary):
    """Description of one version of a model; its repr is a line.

    Attributes:
        max_batch_size: 0 where the model has no batch dimension.
        preprocess: preprocessing of an image to the input; None where the model takes no images.
        labels: class names by id; None where the model has none.
        card: the engine's card.json from `fovea build`; None where there is none.
        card_reason: the reason for a missing card; None where there is one.
        made_of: models that an ensemble or a pipeline runs; of others none.
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
