"""Finds the operators of a graph that only plugins of TensorRT compute.

TensorRT finds a plugin by the operator's name alone, in whatever domain it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx.helper import make_opsetid

_DOMAIN = "tensorrt.plugins"
# ONNX Runtime has operators of its own there.
_RUNTIMES = ("com.microsoft", "com.ms.")


def plugin_operators(model: onnx.ModelProto) -> tuple[str, ...]:
    """Name the operators that neither ONNX nor ONNX Runtime defines, in order."""
    return tuple(sorted({node.op_type for node in _unknown(model)}))


def mark_plugins(model: onnx.ModelProto) -> None:
    """Move them out of ONNX's domain, where its checker and converters refuse what they miss."""
    found = [node for node in _unknown(model) if node.domain in ("", "ai.onnx")]
    for node in found:
        node.domain = _DOMAIN
    if found:
        model.opset_import.append(make_opsetid(_DOMAIN, 1))


def _unknown(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    functions = {(function.domain, function.name) for function in model.functions}
    for node in model.graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        known = (
            onnx.defs.has(node.op_type, domain)
            or (node.domain, node.op_type) in functions
            or domain.startswith(_RUNTIMES)
        )
        if not known:
            yield node
