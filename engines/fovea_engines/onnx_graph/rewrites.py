"""Rewrites graph patterns that CPU runtimes compute slowly or reject."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_attribute, make_node
from onnx.numpy_helper import from_array, to_array

from fovea_engines.onnx_graph.wiring import Wiring, attribute, rebuild

_TO_THE_END = 2**31 - 1  # smallest end of a Slice that means "to the end of the axis"


def fuse_focus(model: onnx.ModelProto) -> None:
    """Replace four strided slices, their concatenation and a convolution by one convolution.

    This pattern is YOLO's Focus layer. Each slice takes every second pixel of every second row. A
    convolution of the joined slices with weights [out, 4c, k, k] at stride 1 equals a convolution
    of the image with weights [out, c, 2k, 2k] at stride 2. CPU runtimes compute slices slowly: they
    take an eighth of the time of yolox_nano in INT8. The model is changed in place if it has the
    pattern.
    """
    wiring = Wiring(model)
    for concat in wiring.nodes:
        offsets = _offsets(wiring, concat)
        takers = wiring.consumers[concat.output[0]] if concat.op_type == "Concat" else []
        if offsets is None or len(takers) != 1 or not _is_plain(wiring, takers[0]):
            continue
        [conv] = takers
        weight = to_array(wiring.constants[conv.input[1]])
        slices = [wiring.producer[name] for name in concat.input]
        name = f"{conv.input[1]}/focus"
        model.graph.initializer.append(from_array(_spread(weight, offsets), name))
        conv.input[0], conv.input[1] = slices[0].input[0], name
        _double(conv)
        gone = {node.output[0] for node in (*slices, concat)}
        rebuild(model, (node for node in wiring.nodes if node.output[0] not in gone))
        return


def _offsets(wiring: Wiring, concat: onnx.NodeProto) -> list[tuple[int, int]] | None:
    """Return each slice's start (row, column), or None if `concat` is not part of a Focus layer."""
    if concat.op_type != "Concat" or len(concat.input) != 4 or attribute(concat, "axis", 0) != 1:
        return None
    nodes = [wiring.producer.get(name) for name in concat.input]
    found = [_offset(wiring, node) for node in nodes if node is not None]
    sources = {node.input[0] for node in nodes if node is not None}
    alone = all(len(wiring.consumers[name]) == 1 for name in concat.input)
    alone &= wiring.outputs.isdisjoint([*concat.input, *concat.output])
    offsets = [offset for offset in found if offset is not None]
    if len(sources) == 1 and alone and sorted(offsets) == [(0, 0), (0, 1), (1, 0), (1, 1)]:
        return offsets
    return None


def _offset(wiring: Wiring, node: onnx.NodeProto) -> tuple[int, int] | None:
    if node.op_type != "Slice" or any(name not in wiring.constants for name in node.input[1:]):
        return None
    values = [to_array(wiring.constants[name]).tolist() for name in node.input[1:]]
    if len(values) != 4:
        return None
    starts, ends, axes, steps = values
    if sorted(axes) != [2, 3] or steps != [2, 2] or min(ends) < _TO_THE_END:
        return None
    begin = dict(zip(axes, starts, strict=True))
    return begin[2], begin[3]


def _is_plain(wiring: Wiring, node: onnx.NodeProto) -> bool:
    return (
        node.op_type == "Conv"
        and node.input[1] in wiring.constants
        and attribute(node, "group", 1) == 1
        and set(attribute(node, "strides", [1])) == {1}
        and set(attribute(node, "dilations", [1])) == {1}
        and attribute(node, "auto_pad", b"NOTSET") == b"NOTSET"
    )


def _spread(weight: NDArray[Any], offsets: list[tuple[int, int]]) -> NDArray[Any]:
    """Convert weights [out, 4c, k, k] for the joined slices to [out, c, 2k, 2k] for the image."""
    out, channels, height, width = weight.shape
    each = channels // 4
    spread = np.zeros((out, each, 2 * height, 2 * width), weight.dtype)
    for i, (row, column) in enumerate(offsets):
        spread[:, :, row::2, column::2] = weight[:, i * each : (i + 1) * each]
    return spread


def _double(conv: onnx.NodeProto) -> None:
    kernel = [2 * n for n in attribute(conv, "kernel_shape", [])]
    pads = [2 * n for n in attribute(conv, "pads", [0, 0, 0, 0])]
    del conv.attribute[:]
    if kernel:
        conv.attribute.append(make_attribute("kernel_shape", kernel))
    conv.attribute.extend([make_attribute("strides", [2, 2]), make_attribute("pads", pads)])


def gather_first_columns(model: onnx.ModelProto) -> None:
    """Replace a Slice that selects the first columns by Gather, if GatherElements reads its result.

    OpenVINO 2026.4.1 removes such a Slice during compilation, and then reports an error about the
    shapes. Examples are the YOLO26 models for masks, keypoints and rotated boxes. The model is
    changed in place.
    """
    wiring = Wiring(model)
    tables = {node.input[0] for node in wiring.nodes if node.op_type == "GatherElements"}
    slices = [node for name in tables if (node := wiring.producer.get(name)) is not None]
    found = [(node, first) for node in slices if (first := _first_columns(wiring, node))]
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info if found else []
    shapes = {value.name: value.type.tensor_type.shape.dim for value in inferred}
    for node, (count, axis) in found:
        table = shapes.get(node.input[0])
        # Skip a Slice that ends after the last column: Gather would read columns that do not exist.
        if table and table[axis].dim_value >= count:
            name = f"{node.output[0]}/columns"
            model.graph.initializer.append(from_array(np.arange(count), name))
            inputs = [node.input[0], name]
            node.CopyFrom(make_node("Gather", inputs, node.output, node.name, axis=axis))


def _first_columns(wiring: Wiring, node: onnx.NodeProto) -> tuple[int, int] | None:
    """Return the number of elements and the axis of a Slice from 0 to a constant end.

    Return None for other nodes.
    """
    if node.op_type != "Slice" or any(name not in wiring.constants for name in node.input[1:]):
        return None
    values = [to_array(wiring.constants[name]).tolist() for name in node.input[1:]]
    match values:
        case [[0], [end], [axis]] | [[0], [end], [axis], [1]] if 0 < end < _TO_THE_END:
            return end, axis
    return None


def move_late_transpose(model: onnx.ModelProto) -> None:
    """Transpose each grid [n, c, h, w] to rows [n, h*w, c] before the grids are joined.

    YOLOX flattens its grids to [n, c, h*w], joins them, and transposes the result. This
    transposition takes a twentieth of the time of yolox_nano in INT8. OpenVINO stores the channels
    of each grid last in memory, so a transposition before the join is free. The model is changed in
    place if it has the pattern.
    """
    wiring = Wiring(model)
    for transpose in wiring.nodes:
        join = wiring.producer.get(transpose.input[0]) if transpose.input else None
        if (
            join is None
            or (transpose.op_type, attribute(transpose, "perm", [])) != ("Transpose", [0, 2, 1])
            or (join.op_type, attribute(join, "axis", 0)) != ("Concat", 2)
        ):
            continue
        flat = [node for name in join.input if (node := wiring.producer.get(name)) is not None]
        alone = all(len(wiring.consumers[name]) == 1 for name in (*join.input, *join.output))
        if (
            alone
            and wiring.outputs.isdisjoint([*join.input, *join.output])
            and len(flat) == len(join.input)
            and all(_flattens_grid(wiring, node) for node in flat)
        ):
            rebuild(model, _move(model, wiring, flat, join, transpose))
            return


def _flattens_grid(wiring: Wiring, node: onnx.NodeProto) -> bool:
    """Return whether a node flattens joined channels [n, c, h, w] to [n, c, h*w]."""
    grid = wiring.producer.get(node.input[0])
    if (
        grid is None
        or (grid.op_type, attribute(grid, "axis", 0)) != ("Concat", 1)
        or node.op_type != "Reshape"
        or node.input[1] not in wiring.constants
    ):
        return False
    shape = to_array(wiring.constants[node.input[1]]).tolist()
    # In the shape of a Reshape, 0 copies the length of the batch, and -1 infers the length h*w.
    return len(shape) == 3 and shape[0] in (0, 1) and shape[2] == -1


def _move(
    model: onnx.ModelProto,
    wiring: Wiring,
    flat: list[onnx.NodeProto],
    join: onnx.NodeProto,
    transpose: onnx.NodeProto,
) -> Iterator[onnx.NodeProto]:
    gone = {node.output[0] for node in (*flat, join)}
    for node in wiring.nodes:
        if node is transpose:
            yield from _rows(model, wiring, flat, join, transpose)
        elif node.output[0] not in gone:
            yield node


def _rows(
    model: onnx.ModelProto,
    wiring: Wiring,
    flat: list[onnx.NodeProto],
    join: onnx.NodeProto,
    transpose: onnx.NodeProto,
) -> Iterator[onnx.NodeProto]:
    for node in flat:
        batch, channels, rest = to_array(wiring.constants[node.input[1]]).tolist()
        stem = node.output[0]
        shape = from_array(np.array([batch, rest, channels], np.int64), f"{stem}/shape")
        model.graph.initializer.append(shape)
        last = f"{stem}/channels_last"
        yield make_node("Transpose", [node.input[0]], [last], perm=[0, 2, 3, 1])
        yield make_node("Reshape", [last, shape.name], [f"{stem}/rows"], node.name)
    rows = [f"{node.output[0]}/rows" for node in flat]
    yield make_node("Concat", rows, list(transpose.output), join.name, axis=1)
