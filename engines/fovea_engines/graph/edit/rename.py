"""Renames inputs and outputs of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnx

from fovea_engines.graph.edit.edited import Edited, copied, expect
from fovea_engines.graph.edit.subgraphs import subgraphs, tensors_of
from fovea_engines.graph.tensors import graph_inputs
from fovea_preprocess.errors import InvalidOption


def rename(model: onnx.ModelProto, names: Mapping[str, str]) -> Edited:
    """Give inputs and outputs other names, all at once; two may exchange theirs.

    Raises:
        InvalidOption: an old name is neither an input nor an output, or a new one is taken.
    """
    outer = [*(spec.name for spec in graph_inputs(model)), *(v.name for v in model.graph.output)]
    for old in names:
        expect(old, outer, "input or output")
    result = copied(model)
    taken = Counter(name for name in tensors_of(result.graph) if name not in names)
    taken.update(names.values())
    for new in names.values():
        if not new or taken[new] > 1:
            raise InvalidOption(f"{new!r} cannot be a new name: a tensor of the model has it")
    _rename(result.graph, names)
    told = ", ".join(f"{old} is now {new}" for old, new in names.items())
    return Edited(result, f"rename: {told}", {new: old for old, new in names.items()})


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
        for inner in subgraphs(node):
            _rename(inner, names)
