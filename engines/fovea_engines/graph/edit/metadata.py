"""Removes and writes the metadata of a model."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx.helper import set_model_props

from fovea_engines.graph.edit.edited import Edited, copied
from fovea_engines.graph.tensors import metadata_of


def strip_metadata(model: onnx.ModelProto) -> Edited:
    """Remove the exporter's key-value pairs and every description, also of nodes."""
    result = copied(model)
    for part in (result.graph, *result.graph.node, *result.graph.input, *result.graph.output):
        del part.metadata_props[:]
        part.ClearField("doc_string")
    del result.metadata_props[:]
    result.ClearField("doc_string")
    gone = ", ".join(metadata_of(model)) or "descriptions"
    return Edited(result, f"strip metadata: {gone} removed")


def write_metadata(model: onnx.ModelProto, entries: Mapping[str, str]) -> Edited:
    """Add key-value pairs, or replace those of the same key."""
    result = copied(model)
    set_model_props(result, metadata_of(model) | dict(entries))
    return Edited(result, f"metadata: {', '.join(entries)} written")
