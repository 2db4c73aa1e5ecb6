"""Adds to a head the preprocessing that a file decides as its exporter wrote it."""

from __future__ import annotations

from dataclasses import replace

import onnx

from fovea_engines.detect.heads.recognition import Recognition
from fovea_engines.graph.own_resize import own_fit

# As ov2onnx names what it writes from the files of OpenVINO's model zoo.
_OF_OPENVINO = "from-openvino"


def as_written(head: Recognition, model: onnx.ModelProto) -> Recognition:
    """Return a head with what the graph decides of its preprocessing.

    Once it is normalised, a resize in the graph is a constant, and tells nothing.
    """
    return replace(
        head,
        own_fit=own_fit(model) if head.resizes else None,
        from_openvino=model.graph.name == _OF_OPENVINO,
    )
