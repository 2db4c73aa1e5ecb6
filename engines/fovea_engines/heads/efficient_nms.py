"""Replaces TensorRT's plugin operator EfficientNMS_TRT by standard operators.

The file plugin/efficientNMSPlugin/README.md of NVIDIA/TensorRT describes the operator. The operator
takes boxes [batch, n, 4] and scores [batch, n, classes]. It returns num_detections int32
[batch, 1], boxes [batch, k, 4], scores [batch, k] and classes int32 [batch, k], best first. k is
the attribute `max_output_boxes`.

There are two differences from the plugin. Rows after the last detection are undefined in the
plugin, but zero here. The plugin considers only the best 4096 scores, but this code considers all
scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx.helper import printable_attribute

from fovea_engines.onnx_graph.tensors import opset_of
from fovea_engines.onnx_graph.wiring import attribute, rebuild
from fovea_engines.onnx_graph.writer import Writer
from fovea_preprocess.errors import UnsupportedModel

PLUGIN = "EfficientNMS_TRT"
"""Type of the operator's nodes in a graph."""

_FIRST_OPSET = 12  # the operators in this file have not changed their inputs since this opset
_NOTHING = np.finfo(np.float32).min


def expand_efficient_nms(model: onnx.ModelProto) -> None:
    """Replace all nodes of the operator, in any domain. The model is changed in place.

    Raises:
        UnsupportedModel: the operator also decodes boxes with anchors, has separate boxes for each
            class, or has an attribute that is not a number; or the opset is too old.
    """
    found = [node for node in model.graph.node if node.op_type == PLUGIN]
    if not found:
        return
    if (opset := opset_of(model)) < _FIRST_OPSET:
        raise UnsupportedModel(
            f"{PLUGIN} in a model of opset {opset} is not supported: export it with "
            f"{_FIRST_OPSET} or newer"
        )
    shapes = _shapes(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != PLUGIN:
            nodes.append(node)
            continue
        write = _expand(node, *(shapes.get(name, ()) for name in node.input[:2]))
        nodes += write.nodes
        model.graph.initializer.extend(write.constants)
    domains = {node.domain for node in found}
    rebuild(model, iter(nodes))
    for used in [o for o in model.opset_import if o.domain and o.domain in domains]:
        model.opset_import.remove(used)


def _shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.value_info)
    return {v.name: [d.dim_value or -1 for d in v.type.tensor_type.shape.dim] for v in values}


def _expand(node: onnx.NodeProto, box_shape: Sequence[int], score_shape: Sequence[int]) -> Writer:
    if len([name for name in node.input if name]) > 2:
        raise UnsupportedModel(
            f"{PLUGIN} with anchors as a third input is not supported: export the model with "
            "decoded boxes"
        )
    if len(box_shape) == 4 and box_shape[2] != 1:
        raise UnsupportedModel(
            f"{PLUGIN} must have the same boxes for all classes, [batch, n, 4], but the model has "
            f"{list(box_shape)}: export it with shared boxes"
        )
    write = Writer(node.output[0])
    boxes = write("Reshape", node.input[0], np.array([0, -1, 4]))
    if _number(node, "box_coding", 0):
        boxes = _write_corners(write, boxes)
    scores = node.input[1]
    if _number(node, "score_activation", 0):
        scores = write("Sigmoid", scores)
    if (background := _number(node, "background_class", -1)) >= 0:
        columns = np.arange(max(score_shape[-1:], default=-1)) == background
        if not columns.any():
            raise UnsupportedModel(
                f"the background class {background} of {PLUGIN} is not among its scores of shape "
                f"{list(score_shape)}: export the model with background_class -1"
            )
        scores = write("Where", columns, np.array(_NOTHING), scores)
    best = None
    if _number(node, "class_agnostic", 0):
        # For class-agnostic suppression, keep only the best class of each box.
        best = write("ArgMax", scores, axis=2, keepdims=1)
        scores = write("GatherElements", scores, best, axis=2)
    _write_suppression(write, node, boxes, scores, best)
    return write


def _number(node: onnx.NodeProto, name: str, default: float) -> float:
    """Return the value of an attribute.

    In exports of YOLOv7 and YOLOv9, the attribute may be a list of one number.
    """
    try:
        value = attribute(node, name, default)
    except ValueError:  # the attribute has no value: it refers to an attribute of a function
        value = None
    match value:
        case [int() | float() as only] | (int() | float() as only) if math.isfinite(only):
            return only
    shown = next(printable_attribute(one) for one in node.attribute if one.name == name)
    raise UnsupportedModel(
        f"each attribute of {PLUGIN} must be one number, but the file has {shown}: export the "
        "model again, or without this operator (Fovea runs NMS itself)"
    )


def _write_corners(write: Writer, boxes: str) -> str:
    centre, size = (write("Gather", boxes, np.array(pair), axis=2) for pair in ([0, 1], [2, 3]))
    half = write("Mul", size, np.array(0.5, np.float32))
    return write("Concat", write("Sub", centre, half), write("Add", centre, half), axis=2)


def _write_suppression(
    write: Writer, node: onnx.NodeProto, boxes: str, scores: str, best: str | None
) -> None:
    most = int(_number(node, "max_output_boxes", 100))
    thresholds = (_number(node, name, 0.0) for name in ("iou_threshold", "score_threshold"))
    scores = write("Transpose", scores, perm=[0, 2, 1])
    limits = (np.array(most), *(np.array(each, np.float32) for each in thresholds))
    kept = write("NonMaxSuppression", boxes, scores, *limits)

    # Write the scores of the kept boxes to a table of all classes and boxes. Then choose the best
    # scores of the whole table.
    nothing = np.array([[_NOTHING]])
    table = write("Expand", np.array(_NOTHING), write("Shape", scores))
    table = write("ScatterND", table, kept, write("GatherND", scores, kept))
    table = write("Reshape", table, np.array([0, -1]))
    batch, count = (write("Gather", write("Shape", boxes), np.array([axis])) for axis in (0, 1))
    rows = write("Concat", batch, np.array([most]), axis=0)
    table = write("Concat", table, write("Expand", nothing, rows), axis=1)
    found, places = write.top(table, most)
    valid = write("Greater", found, np.array(_NOTHING))
    anchors = write("Mod", places, count)
    classes = write("Div", places, count)
    if best is not None:
        best = write("Reshape", best, np.array([0, -1]))
        classes = write("GatherElements", best, anchors, axis=1)

    numbers = write.cast(valid, "float32")
    numbers = write("MatMul", numbers, np.ones((most, 1), np.float32))
    write.cast(numbers, "int32")
    write.name(node.output[0])
    places = write("Expand", _write_column(write, anchors), np.array([1, 1, 4]))
    boxes = write("GatherElements", boxes, places, axis=1)
    write("Where", _write_column(write, valid), boxes, np.array(0, np.float32))
    write.name(node.output[1])
    write("Where", valid, found, np.array(0, np.float32))
    write.name(node.output[2])
    write("Where", valid, write.cast(classes, "int32"), np.array(0, np.int32))
    write.name(node.output[3])


def _write_column(write: Writer, rows: str) -> str:
    return write("Reshape", rows, np.array([0, -1, 1]))
