"""Reads the preprocessing that an ONNX file contains, from the graph as its exporter wrote it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from fovea_engines.heads.image_inputs import image_of, source_feeds
from fovea_engines.heads.recognition import Recognition
from fovea_engines.heads.signature import image_layout, image_sides
from fovea_engines.onnx_graph.plain_session import (
    cannot_run,
    expose_tensors,
    onnxruntime_errors,
    open_plain,
)
from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_preprocess.errors import UnsupportedModel
from fovea_preprocess.spec import Fit

# Name of the graphs that ov2onnx writes. It converts models of OpenVINO's model zoo.
_OF_OPENVINO = "from-openvino"
_RESIZES = {"Resize", "Upsample"}
# Operators whose results are shapes or features. Their outputs are no longer an image.
_ENDS = {"Shape", "Size", "Conv", "ConvInteger", "QLinearConv"}
# Height and width in pixels of a test image for an input of any size. They differ, because only a
# non-square image shows whether the graph stretches or letterboxes it.
_SIDES = 320, 480
# Largest relative change of an aspect ratio that rounding to whole pixels can cause.
_ROUNDING = 0.02


def add_own_preprocess(head: Recognition, model: onnx.ModelProto) -> Recognition:
    """Return a copy of a recognised head with the preprocessing that the graph contains.

    Call it with the original graph. The normalisation of a graph fixes the input size and turns the
    computed size of a resize into a constant, which no longer shows the rule for other sizes.
    """
    return replace(
        head,
        own_fit=find_own_fit(model) if head.resizes else None,
        from_openvino=model.graph.name == _OF_OPENVINO,
    )


def find_own_fit(model: onnx.ModelProto) -> Fit | None:
    """Return how the original graph resizes images: "letterbox" or "stretch".

    The method is unknown for a fixed square image size, for a graph without a resize, and for a
    graph that ONNX Runtime cannot run.

    Returns:
        "letterbox" if the resize keeps the aspect ratio, and "stretch" if it does not. If the
        method is unknown, None.
    """
    inputs = graph_inputs(model)
    declared = image_of(inputs)
    shape = declared.shape if len(declared.shape) == 4 else (1, *declared.shape)
    image = replace(declared, shape=shape)
    resized = _find_resized(model, image.name)
    if resized is None or image_layout(image) is None:
        return None
    height, width = (
        usual if side == -1 else side
        for side, usual in zip(image_sides(image), _SIDES, strict=True)
    )
    if height == width:
        return None
    row = (3, height, width) if image_layout(image) == "NCHW" else (height, width, 3)
    try:
        with onnxruntime_errors(cannot_run):
            session = open_plain(expose_tensors(model, [resized]))
            feeds = source_feeds(inputs, np.zeros((1, *row), image.dtype))
            [found] = session.run([resized], feeds)
    except UnsupportedModel:
        return None
    seen = replace(image, shape=found.shape)
    if image_layout(seen) is None:
        return None
    rows, columns = image_sides(seen)
    kept = abs(rows * width / (columns * height) - 1) < _ROUNDING
    return "letterbox" if kept else "stretch"


def _find_resized(model: onnx.ModelProto, image: str) -> str | None:
    """Return the name of the resized image's tensor, or None if the graph does not resize it.

    A resize of features, after the first convolution, does not count.
    """
    reached = {image}
    for node in model.graph.node:
        if node.input and node.input[0] in reached and node.op_type not in _ENDS:
            if node.op_type in _RESIZES:
                return str(node.output[0])
            reached.update(node.output)
    return None
