"""What a server tells of its models, as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model.

    Attributes:
        version: its number.
        state: "LOADING", "READY", "UNLOADING" or "UNAVAILABLE".
        ready: it takes requests.
        reason: why it does not, or why its last reload failed; None otherwise.
    """

    version: str
    state: str
    ready: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One model of the list. What is not known of a model that is not ready is None.

    Attributes:
        name: of the model.
        version: that this is about: the newest that can answer, or the newest.
        ready: that version takes requests.
        reason: why it does not; None where it does.
        versions: all of them, ascending.
        task: "detect", or "tensors" where the outputs are not decoded.
        accepts_images: `Client.predict` works with it.
        backend: e.g. "openvino"; also None for an ensemble.
        precision: "fp32", "fp16" or "int8"; also None for an ensemble.
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
    """An input or output of a model.

    Attributes:
        name: as in the model.
        datatype: as the v2 protocol names it, e.g. "FP32".
        shape: with -1 where any size goes.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Model(ModelSummary):
    """All that is known of one version of a model.

    Attributes:
        max_batch_size: 0 where the model has no batch dimension.
        inputs: in the model's order.
        outputs: in the model's order.
        preprocess: how an image becomes the input; None where the model takes no images.
        labels: class names by id; None where the model has none.
        card: what `fovea build` recorded about the engine (card.json); None where there is none.
        card_reason: why there is no card; None where there is one.
    """

    max_batch_size: int
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    preprocess: Mapping[str, Any] | None
    labels: tuple[str, ...] | None
    card: Mapping[str, Any] | None
    card_reason: str | None
