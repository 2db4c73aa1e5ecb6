"""Normalises exports: a fixed size, a named batch, no shape arithmetic, a recent opset."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import onnx
from onnx import version_converter
from onnx.helper import set_model_props

from fovea_engines.detect.heads.metadata import image_size
from fovea_engines.detect.heads.preprocess import default_preprocess
from fovea_engines.graph.rewrites import fuse_focus, move_late_transpose
from fovea_engines.graph.tensors import graph_inputs, metadata_of, opset_of
from fovea_preprocess.errors import UnsupportedModel

OPSET = 19  # the first opset with everything that later passes write
_IR_VERSION = 9  # the IR version of that opset
_DEFAULT_SIZE = (640, 640)
_CONTROL_FLOW = {"If", "Loop", "Scan", "SequenceMap"}


def normalise(
    model: onnx.ModelProto,
    size: tuple[int, int] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> onnx.ModelProto:
    """Bring an image model, which is changed in place, into the form that is compiled.

    The returned model has one image input of a fixed (height, width): `size`, or the model's own,
    or its metadata's `imgsz`, or 640x640. A dynamic batch stays dynamic. `note` receives remarks
    about harmless failures.

    Raises:
        UnsupportedModel: several inputs, an input that is no batch of colour images, or control
            flow; the message says which part.
        InvalidOption: the model cannot take `size`.
    """
    metadata = metadata_of(model)
    _pin_size(model, size)
    del model.graph.value_info[:]  # holds shapes of the previous size
    model = _slim(model)
    _refuse_control_flow(model)
    model = _convert_opset(model, note)
    fuse_focus(model)
    move_late_transpose(model)
    _infer_outputs(model)
    _name_nodes(model)
    set_model_props(model, metadata)
    return model


def _pin_size(model: onnx.ModelProto, size: tuple[int, int] | None) -> None:
    inputs = graph_inputs(model)
    if len(inputs) != 1:
        names = ", ".join(repr(spec.name) for spec in inputs) or "none"
        raise UnsupportedModel(
            f"the model has {len(inputs)} inputs ({names}); a model of one image input is needed"
        )
    dynamic = -1 in inputs[0].shape[1:]
    if size is None and dynamic and image_size(metadata_of(model)) is None:
        size = _DEFAULT_SIZE
    spec = default_preprocess(None, inputs, metadata_of(model), size)
    [value] = (v for v in model.graph.input if v.name == inputs[0].name)
    batch, *row = value.type.tensor_type.shape.dim
    if not batch.dim_value:
        batch.dim_param = "batch"
    for dim, length in zip(row, spec.row_shape, strict=True):
        dim.dim_value = length


def _slim(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxslim  # not at the top: a server that rebuilds an engine does not need it

    try:
        slimmed: onnx.ModelProto = onnxslim.slim(model)
    except Exception as error:  # onnxslim raises any error of its passes
        raise UnsupportedModel(
            f"onnxslim cannot simplify the graph ({type(error).__name__}: {error}); "
            "export the model with a fixed size"
        ) from error
    return slimmed


def _refuse_control_flow(model: onnx.ModelProto) -> None:
    found = sorted({node.op_type for node in model.graph.node} & _CONTROL_FLOW)
    if found:
        raise UnsupportedModel(
            f"the graph has control flow ({', '.join(found)}) that depends on the image; export "
            "the model without it (with NMS outside the graph)"
        )


def _convert_opset(model: onnx.ModelProto, note: Callable[[str], None]) -> onnx.ModelProto:
    opset = opset_of(model) or OPSET
    if opset < OPSET:
        try:
            model = version_converter.convert_version(model, OPSET)
        except (version_converter.ConvertError, RuntimeError, ValueError) as error:
            note(f"stays at opset {opset}: {str(error).strip().splitlines()[0]}")
        else:
            model.ir_version = max(model.ir_version, _IR_VERSION)
    return model


def _name_nodes(model: onnx.ModelProto) -> None:
    """Give every node a unique name: later passes and messages refer to nodes by name."""
    taken: set[str] = set()
    for number, node in enumerate(model.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{number}" + "_" * (f"{node.op_type}_{number}" in taken)
        taken.add(node.name)


def _infer_outputs(model: onnx.ModelProto) -> None:
    """Infer the outputs' shapes from the fixed size, in place of the exporter's."""
    bare = deepcopy(model)
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    for value, better in zip(model.graph.output, inferred.graph.output, strict=True):
        if better.type.tensor_type.HasField("shape"):
            value.type.CopyFrom(better.type)
    del model.graph.value_info[:]
