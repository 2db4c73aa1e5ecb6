"""Describes the result of an edit, and explains unknown names."""

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
    """Return the graph with all shapes inferred from its inputs, ignoring shapes in the file."""
    bare = copy_model(model)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(bare, data_prop=True).graph


def refresh(model: onnx.ModelProto) -> None:
    """Drop the shapes of inner tensors, and infer the shapes of the outputs again."""
    for value, better in zip(model.graph.output, infer(model).output, strict=True):
        rank = len(value.type.tensor_type.shape.dim)
        value.type.CopyFrom(better.type)
        if not better.type.tensor_type.HasField("shape"):
            for _ in range(rank):
                value.type.tensor_type.shape.dim.add()
    del model.graph.value_info[:]


def first_input(model: onnx.ModelProto) -> TensorSpec:
    """Return the image input.

    Raises:
        UnsupportedModel: the first input has no dimensions.
    """
    inputs = graph_inputs(model)
    if not inputs or not inputs[0].shape:
        raise UnsupportedModel("the model's first input has no shape: export it with one")
    return inputs[0]


def has_batch(spec: TensorSpec) -> bool:
    """Return False if the first dimension is a channel, as in torchvision's [3, h, w]."""
    return len(spec.shape) > 1 and not (len(spec.shape) == 3 and spec.shape[0] == 3)


@dataclass(frozen=True, slots=True)
class Values:
    """Converts values of an input: `raw` from before the edit to after it, `cooked` back."""

    raw: Callable[[Array], Array]
    cooked: Callable[[Array], Array]


@dataclass(frozen=True, slots=True, eq=False)
class Edited:
    """An edited model, and how to compare it with the original.

    Attributes:
        model: the edited model.
        what: description of the edit, for people.
        origin: new name of an input or output -> its original tensor; unchanged names are left out.
        values: input -> conversion, for inputs whose values change.
        keeps: True if the outputs must not change.
        together: True if rows are now computed in one call that were separate calls before.
        advice: what to do if the model cannot run, or computes other results.
        judge: a version of the model that accepts the inputs of both, for comparison if neither
            accepts the inputs of the other.
    """

    model: onnx.ModelProto
    what: str
    origin: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Values] = field(default_factory=dict)
    keeps: bool = True
    together: bool = False
    advice: str = "name another tensor"
    judge: onnx.ModelProto | None = None


def copy_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that an edit may change."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def expect(name: str, known: Iterable[str], kind: str) -> None:
    """Check that a name is known.

    Raises:
        InvalidOption: the name is unknown; the message suggests similar names.
    """
    names = list(known)
    if name not in names:
        raise InvalidOption(f"the model has no {kind} {name!r}{nearest(name, names)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests the most similar known names, or ""."""
    names = list(known)
    near = get_close_matches(name, names, _SHOWN, cutoff=0.5)
    if not near and len(names) <= _SHOWN:
        near = names
    return f"; did you mean {' or '.join(near)}?" if near else ""
