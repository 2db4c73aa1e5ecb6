"""Cuts out a part of a graph between named tensors."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx.utils import Extractor

from fovea_engines.edit.edited import Edited, copy_model, expect
from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_engines.onnx_graph.wiring import subgraphs, tensors_of
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

_IR_VERSION = 4  # since this version, weights need not be inputs


def cut(model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> Edited:
    """Keep only the nodes between two sets of tensors.

    Args:
        model: model, which is not changed.
        inputs: names of the tensors that become the inputs. If empty, the original inputs that the
            outputs need are kept.
        outputs: names of the tensors that become the outputs. If empty, all original outputs are
            kept.

    Raises:
        InvalidOption: a tensor is unknown, there are no nodes between the tensors, an output
            depends on further inputs, or no output depends on an input.
        UnsupportedModel: the element type of a tensor is unknown.
    """
    own = [spec.name for spec in graph_inputs(model)]
    computed = [name for node in model.graph.node for name in node.output if name]
    for name in inputs:
        _expect(model, name, [*own, *computed])
    for name in outputs:
        if name in own:
            raise InvalidOption(
                f"{name!r} is an input, so it cannot be an --output: give the name of a tensor "
                "that a node computes"
            )
        _expect(model, name, computed)
    wanted = list(dict.fromkeys(outputs or (value.name for value in model.graph.output)))
    part = _extract(model, list(dict.fromkeys(inputs or own)), wanted)
    if inputs:
        _check_reach(part, own)
    read = set().union(*map(_list_inputs, part.graph.node))
    if not part.graph.node or not read.intersection(v.name for v in part.graph.input):
        raise InvalidOption(
            f"the cut leaves no node: {', '.join(wanted)} does not depend on "
            f"{', '.join(inputs or own)}"
        )
    needed = [value for value in part.graph.input if value.name in read]
    stated = {value.name for value in model.graph.value_info}
    shapes = [value for value in part.graph.value_info if value.name in stated]
    result = copy_model(model)
    result.graph.CopyFrom(part.graph)
    result.graph.name = model.graph.name
    del result.graph.input[:], result.graph.value_info[:], result.functions[:]
    result.graph.input.extend(needed)
    result.graph.value_info.extend(shapes)
    result.functions.extend(part.functions)
    result.ir_version = max(result.ir_version, _IR_VERSION)
    gone = len(model.graph.node) - len(result.graph.node)
    return Edited(result, f"cut: {gone} of {len(model.graph.node)} nodes dropped")


def _expect(model: onnx.ModelProto, name: str, known: Sequence[str]) -> None:
    node = next((node for node in model.graph.node if node.name == name), None)
    if node is not None and name not in known:
        made = " or ".join(node.output)
        raise InvalidOption(f"{name!r} is a node, not a tensor: use its output {made}")
    expect(name, known, "tensor")


def _extract(model: onnx.ModelProto, inputs: list[str], outputs: list[str]) -> onnx.ModelProto:
    typed = onnx.shape_inference.infer_shapes(model, data_prop=True)
    computed = {name for node in model.graph.node for name in node.output}
    wanted = list(outputs)
    while True:
        try:
            part = Extractor(typed).extract_model(inputs, wanted)
        except ValueError as error:
            raise UnsupportedModel(
                f"the model cannot be cut there ({error}), because ONNX cannot infer the type of "
                "a tensor after an operator that it does not define: cut before this operator"
            ) from error
        # ONNX's extractor does not follow tensors that only subgraphs read. So extract again, with
        # these tensors as additional outputs.
        read = set().union(*map(_list_inputs, part.graph.node))
        missing = (read & computed).difference(inputs, *(node.output for node in part.graph.node))
        if not missing:
            break
        wanted += sorted(missing)
    del part.graph.output[len(outputs) :]
    present = {tensor.name for tensor in part.graph.initializer}
    part.graph.initializer.extend(
        t for t in model.graph.initializer if t.name in read and t.name not in present
    )
    return part


def _check_reach(part: onnx.ModelProto, own: Sequence[str]) -> None:
    """Check that the kept part uses all new inputs, and needs no others.

    Raises:
        InvalidOption: an input is unused or missing.
    """
    given = {value.name for value in part.graph.input}
    read = set().union(*map(_list_inputs, part.graph.node))
    missing = read.intersection(own) - given
    if missing:
        name = next(name for name in own if name in missing)
        taker = next(node for node in part.graph.node if name in _list_inputs(node))
        raise InvalidOption(
            f"the kept part also depends on input {name!r}, through node {taker.name!r}: add "
            f"--input {name}, or cut at a tensor that all paths pass"
        )
    idle = given - read
    if idle and part.graph.node:  # if no node is left, the caller reports this
        raise InvalidOption(
            f"no output depends on {', '.join(sorted(idle))}: leave --input {min(idle)} out, or "
            "give an --output that depends on it"
        )


def _list_inputs(node: onnx.NodeProto) -> set[str]:
    return set(node.input).union(*map(tensors_of, subgraphs(node)))
