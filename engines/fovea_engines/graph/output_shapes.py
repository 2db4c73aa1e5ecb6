"""Infers the shapes of a graph's outputs, and whether they follow the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

import onnx

from fovea_engines.graph.tensors import graph_inputs
from fovea_engines.graph.wiring import COUNTING, outputs_after

# Numbers lead further than a name: what is the same for two batches does not follow the batch.
_BATCHES = 2, 3


def infer_outputs(model: onnx.ModelProto, note: Callable[[str], None]) -> None:
    """Infer the shapes of the outputs, in place of the exporter's, from an image of fixed size.

    A dynamic batch is fixed at 1, with a note, where an output does not follow it: rows [k, 6] of
    all images, or a batch that the exporter wrote into the graph.
    """
    trials = [_inferred(model)]
    if graph_inputs(model)[0].shape[0] == -1:
        trials = [_inferred(model, rows) for rows in _BATCHES]
        if (whole := _without_batch(model, trials)) is not None:
            note(f"takes one image at a time: output {whole} has no row for each of a batch")
            _fix_batch(model, 1)
            trials = [_inferred(model)]
    for value, *shapes in zip(model.graph.output, *trials, strict=True):
        known = [shape for shape in shapes if shape is not None]
        if len(known) == len(shapes):
            del value.type.tensor_type.shape.dim[:]
            for lengths in zip(*known, strict=True):
                same = len(set(lengths)) == 1
                value.type.tensor_type.shape.dim.add(
                    dim_value=(lengths[0] or None) if same else None,
                    dim_param=None if same else "batch",
                )
    del model.graph.value_info[:]


def _without_batch(
    model: onnx.ModelProto, trials: Sequence[Sequence[tuple[int, ...] | None]]
) -> str | None:
    """Return the name of an output whose first dimension is not the batch; None without one."""
    counted = outputs_after(model, COUNTING)
    for value, *shapes in zip(model.graph.output, *trials, strict=True):
        rows = tuple((-1 if shape is None else next(iter(shape), 1)) for shape in shapes)
        unknown = min(rows) < 1
        if rows != _BATCHES and (not unknown or value.name in counted):
            return str(value.name)
    return None


def _inferred(model: onnx.ModelProto, batch: int | None = None) -> list[tuple[int, ...] | None]:
    """Return the shapes of the outputs, with 0 for an unknown length; None for an unknown rank."""
    bare = deepcopy(model)
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    if batch is not None:
        _fix_batch(bare, batch)
    found = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph.output
    tensors = [value.type.tensor_type for value in found]
    return [
        tuple(dim.dim_value for dim in each.shape.dim) if each.HasField("shape") else None
        for each in tensors
    ]


def _fix_batch(model: onnx.ModelProto, batch: int) -> None:
    [name] = (spec.name for spec in graph_inputs(model))
    [value] = (v for v in model.graph.input if v.name == name)
    value.type.tensor_type.shape.dim[0].dim_value = batch
