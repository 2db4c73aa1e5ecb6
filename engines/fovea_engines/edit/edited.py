"""Defines the result of an edit, and functions that several edits use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

import onnx

from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

_SHOWN = 3


def infer(model: onnx.ModelProto) -> onnx.GraphProto:
    """Return the graph with all shapes inferred from its inputs. Shapes in the file are ignored."""
    bare = copy_model(model)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(bare, data_prop=True).graph


def refresh(model: onnx.ModelProto) -> None:
    """Remove the shapes of inner tensors, and infer the shapes of the outputs again, in place."""
    for value, better in zip(model.graph.output, infer(model).output, strict=True):
        rank = len(value.type.tensor_type.shape.dim)
        value.type.CopyFrom(better.type)
        if not better.type.tensor_type.HasField("shape"):
            for _ in range(rank):
                value.type.tensor_type.shape.dim.add()
    del model.graph.value_info[:]


def first_input(model: onnx.ModelProto) -> TensorSpec:
    """Return the first input of a model. In an image model, this is the image.

    Raises:
        UnsupportedModel: the model has no input, or its first input has no shape.
    """
    inputs = graph_inputs(model)
    if not inputs or not inputs[0].shape:
        raise UnsupportedModel(
            "the model's first input has no shape: export the model with input shapes"
        )
    return inputs[0]


def has_batch(spec: TensorSpec) -> bool:
    """Return whether the first dimension of an input is the batch.

    It is not the batch in torchvision's detectors, whose input is [3, h, w].
    """
    return len(spec.shape) > 1 and not (len(spec.shape) == 3 and spec.shape[0] == 3)


@dataclass(frozen=True, slots=True)
class Conversion:
    """Functions that convert the values of an input whose meaning an edit changed.

    Attributes:
        to_edited: converts values for the original model to values for the edited model.
        to_original: converts values for the edited model to values for the original model.
    """

    to_edited: Callable[[Array], Array]
    to_original: Callable[[Array], Array]


@dataclass(frozen=True, slots=True, eq=False)
class Edited:
    """An edited model, with the information for a comparison with the original model.

    Attributes:
        model: edited model.
        what: text about the edit.
        origin: new name of each renamed input or output -> name of the tensor in the original
            model.
        values: name of each input whose values change -> their conversion.
        keeps: True if the values of the outputs must not change.
        together: True if the edited model computes several rows in one call, and the original model
            may need a separate call for each row.
        advice: advice for the user if the edited model cannot run, or computes different results.
        bridge: version of the model that accepts the inputs of both models. If the original model
            does not accept the inputs of the edited model, both are compared with this version.
            None if there is no such version.
    """

    model: onnx.ModelProto
    what: str
    origin: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Conversion] = field(default_factory=dict)
    keeps: bool = True
    together: bool = False
    advice: str = "name another tensor"
    bridge: onnx.ModelProto | None = None


def copy_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model, so that an edit does not change the original."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def expect(name: str, known: Iterable[str], kind: str) -> None:
    """Check that a name is known.

    Raises:
        InvalidOption: the name is unknown. The message suggests similar names.
    """
    names = list(known)
    if name not in names:
        raise InvalidOption(f"the model has no {kind} {name!r}{nearest(name, names)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a part of a message that suggests the most similar known names, or ""."""
    names = list(known)
    near = get_close_matches(name, names, _SHOWN, cutoff=0.5)
    if not near and len(names) <= _SHOWN:
        near = names
    return f"; did you mean {' or '.join(near)}?" if near else ""
