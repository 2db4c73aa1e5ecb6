"""Replaces operators by others of the same form."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import defs

from fovea_engines.graph.edit.edited import Edited, copied, expect, nearest
from fovea_engines.graph.tensors import opset_of
from fovea_preprocess.errors import InvalidOption

_DEFAULT_DOMAIN = ("", "ai.onnx")


def replace_operators(model: onnx.ModelProto, operators: Mapping[str, str]) -> Edited:
    """Let other operators compute what nodes of some operators did, with inputs and attributes.

    Raises:
        InvalidOption: the model has no such operator, its operator set has not the new one, or
            that takes other inputs or attributes.
    """
    result = copied(model)
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
    told = "; ".join(text for *_, text in changes)
    return Edited(result, f"replace: {told}", keeps=False)


def _schema(operator: str, opset: int) -> defs.OpSchema:
    if defs.has(operator, opset):
        return defs.get_schema(operator, opset)
    every = [s for s in defs.get_all_schemas_with_history() if s.domain == ""]
    if operator not in {schema.name for schema in every}:
        near = nearest(operator, {schema.name for schema in every})
        raise InvalidOption(f"ONNX has no operator {operator!r}{near}")
    first = min(schema.since_version for schema in every if schema.name == operator)
    raise InvalidOption(
        f"the model is of opset {opset}, and ONNX has {operator} from opset {first}: export the "
        "model with that, or a newer one"
    )


def _check(node: onnx.NodeProto, schema: defs.OpSchema) -> None:
    wrong = [a.name for a in node.attribute if a.name not in schema.attributes]
    required = {name for name, one in schema.attributes.items() if one.required}
    lacking = sorted(required - {a.name for a in node.attribute})
    reason = ""
    if not schema.min_input <= len(node.input) <= schema.max_input:
        reason = f"{schema.name} takes another number of inputs than {len(node.input)}"
    elif not schema.min_output <= len(node.output) <= schema.max_output:
        reason = f"{schema.name} has another number of outputs than {len(node.output)}"
    elif wrong:
        reason = f"{schema.name} has no attribute {', '.join(wrong)}"
    elif lacking:
        reason = f"{schema.name} needs the attribute {', '.join(lacking)}"
    if reason:
        raise InvalidOption(
            f"node {node.name or node.output[0]!r} ({node.op_type}) cannot be replaced: {reason}"
        )
