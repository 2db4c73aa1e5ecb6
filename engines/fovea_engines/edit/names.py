"""Renames inputs and outputs of a graph, replaces operators, and edits metadata."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

import onnx
from onnx import defs
from onnx.helper import set_model_props

from fovea_engines.edit.edited import Edited, copy_model, expect, nearest
from fovea_engines.heads.metadata import RENAMED, renamed_outputs
from fovea_engines.onnx_graph.tensors import graph_inputs, metadata_of, opset_of
from fovea_engines.onnx_graph.wiring import subgraphs, tensors_of
from fovea_preprocess.errors import InvalidOption

_DEFAULT_DOMAIN = ("", "ai.onnx")


def rename(model: onnx.ModelProto, names: Mapping[str, str]) -> Edited:
    """Rename inputs and outputs. All are renamed at the same time, so two may exchange their names.

    `names` maps each old name to the new name. The original names of outputs are stored in the
    metadata, because the recognition of the head uses them to identify the exporter.

    Raises:
        InvalidOption: an old name is neither an input nor an output, or another tensor has a new
            name.
    """
    outer = [*(spec.name for spec in graph_inputs(model)), *(v.name for v in model.graph.output)]
    for old in names:
        expect(old, outer, "input or output")
    result = copy_model(model)
    taken = Counter(name for name in tensors_of(result.graph) if name not in names)
    taken.update(names.values())
    for new in names.values():
        if not new or taken[new] > 1:
            raise InvalidOption(
                f"{new!r} cannot be a new name, because the model already has a tensor with this "
                "name: choose another one"
            )
    outputs = {value.name for value in model.graph.output}
    before = renamed_outputs(metadata_of(model))
    now = {new: before.get(old, old) for old, new in names.items() if old in outputs}
    kept = {new: old for new, old in before.items() if new not in names}
    if renamed := {new: old for new, old in (kept | now).items() if new != old}:
        set_model_props(result, metadata_of(model) | {RENAMED: json.dumps(renamed)})
    _rename(result.graph, names)
    renames = ", ".join(f"{old} is now {new}" for old, new in names.items())
    return Edited(result, f"rename: {renames}", {new: old for old, new in names.items()})


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
        for inner in subgraphs(node):
            _rename(inner, names)


def replace_operators(model: onnx.ModelProto, operators: Mapping[str, str]) -> Edited:
    """Replace operators of a model. The nodes keep their inputs and attributes.

    `operators` maps each old operator to the new operator.

    Raises:
        InvalidOption: the model does not have the old operator, its opset does not have the new
            operator, or the new operator does not accept the inputs or attributes of the nodes.
    """
    result = copy_model(model)
    nodes = [node for node in result.graph.node if node.domain in _DEFAULT_DOMAIN]
    changes = []
    for old, new in operators.items():
        expect(old, dict.fromkeys(node.op_type for node in nodes), "operator")
        schema = _schema(new, opset_of(model))
        chosen = [node for node in nodes if node.op_type == old]
        for node in chosen:
            _check(node, schema)
        changes.append((chosen, new, f"{old} by {new}, {len(chosen)} times"))
    for chosen, new, _ in changes:
        for node in chosen:
            node.op_type = new
    summary = "; ".join(text for *_, text in changes)
    return Edited(result, f"replace: {summary}", keeps=False)


def _schema(operator: str, opset: int) -> defs.OpSchema:
    if defs.has(operator, opset):
        return defs.get_schema(operator, opset)
    every = [s for s in defs.get_all_schemas_with_history() if s.domain == ""]
    if operator not in {schema.name for schema in every}:
        near = nearest(operator, {schema.name for schema in every})
        raise InvalidOption(f"ONNX has no operator {operator!r}{near}")
    first = min(schema.since_version for schema in every if schema.name == operator)
    raise InvalidOption(
        f"the model has opset {opset}, but ONNX has {operator} only from opset {first}: export "
        f"the model with opset {first} or newer"
    )


def _check(node: onnx.NodeProto, schema: defs.OpSchema) -> None:
    wrong = [a.name for a in node.attribute if a.name not in schema.attributes]
    required = {name for name, one in schema.attributes.items() if one.required}
    lacking = sorted(required - {a.name for a in node.attribute})
    reason = ""
    if not schema.min_input <= len(node.input) <= schema.max_input:
        reason = f"{schema.name} does not accept {len(node.input)} inputs"
    elif not schema.min_output <= len(node.output) <= schema.max_output:
        reason = f"{schema.name} does not have {len(node.output)} outputs"
    elif wrong:
        reason = f"{schema.name} has no attribute {', '.join(wrong)}"
    elif lacking:
        reason = f"{schema.name} needs the attribute {', '.join(lacking)}"
    if reason:
        raise InvalidOption(
            f"node {node.name or node.output[0]!r} ({node.op_type}) cannot be replaced: {reason}"
        )


def strip_metadata(model: onnx.ModelProto) -> Edited:
    """Remove the metadata of the exporter, and all descriptions of the model, nodes and tensors."""
    result = copy_model(model)
    for part in (result.graph, *result.graph.node, *result.graph.input, *result.graph.output):
        del part.metadata_props[:]
        part.ClearField("doc_string")
    entries = metadata_of(model)
    kept = {key: entries.pop(key) for key in (RENAMED,) if key in entries}
    set_model_props(result, kept)
    result.ClearField("doc_string")
    gone = ", ".join(entries) or "descriptions"
    return Edited(result, f"strip metadata: {gone} removed")


def write_metadata(model: onnx.ModelProto, entries: Mapping[str, str]) -> Edited:
    """Add key-value pairs to the metadata. Existing pairs with the same key are replaced."""
    result = copy_model(model)
    set_model_props(result, metadata_of(model) | dict(entries))
    return Edited(result, f"metadata: {', '.join(entries)} written")
