"""Compares an edited model with the original model: both run on the same values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx

from fovea_engines.edit.edited import Edited, first_input
from fovea_engines.edit.run import Feed, find_failing_node, name_nodes, run, sample
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_engines.session import Array
from fovea_preprocess.errors import Disagreement, InvalidModel, UnsupportedModel

# Largest accepted difference between the outputs before and after an edit, divided by the largest
# value of the output. A build has the same limit.
_MAX = 0.01


def check(before: onnx.ModelProto, edited: Edited, feed: Feed) -> tuple[Feed, float | None]:
    """Run both models on equivalent input values, and compare all outputs of the edited model.

    Args:
        before: original model.
        edited: edited model, and information for the comparison.
        feed: arrays for the inputs of `before`.

    Returns:
        The arrays for the inputs of the edited model, and the largest difference of an output. If
        the original model does not accept the inputs of the edited model, the difference is None.

    Raises:
        InvalidModel: the edited model is not valid ONNX.
        UnsupportedModel: ONNX Runtime cannot run the edited model.
        Disagreement: the edited model computes different results. The message names the first node
            with different results.
    """
    after = edited.model
    _validate(before, edited)
    own = feed
    feed, comparable = _refit(before, edited, feed)
    if not comparable and edited.bridge is not None:
        _, first = check(before, Edited(edited.bridge, edited.what, advice=edited.advice), own)
        feed, second = check(edited.bridge, replace(edited, bridge=None), own)
        return feed, None if first is None or second is None else max(first, second)
    outputs = [spec.name for spec in graph_outputs(after)]
    if not comparable:
        _run(edited, outputs, feed)
        return feed, None
    raw = {name: values.to_edited(feed[name]) for name, values in edited.values.items()}
    feed = {**feed, **{name: edited.values[name].to_original(raw[name]) for name in raw}}
    inputs = {spec.name: edited.origin.get(spec.name, spec.name) for spec in graph_inputs(after)}
    origins = {name: edited.origin.get(name, name) for name in outputs}
    try:
        found = run(before, [*inputs.values(), *origins.values()], feed, alone=True)
    except UnsupportedModel as error:
        raise UnsupportedModel(
            f"{edited.what}: ONNX Runtime already fails in the original model, at {error}: "
            f"{edited.advice}"
        ) from error
    taken = {name: _join(found[source]) for name, source in inputs.items()} | raw
    have = _run(edited, outputs, taken)
    rows = _rows(before, feed)
    pairs = [(found[origins[name]], have[name]) for name in outputs]
    if edited.keeps and not all(_same(want, new, rows) for want, new in pairs):
        raise Disagreement(f"{edited.what}: {_first_other(before, edited, feed, taken)}")
    return taken, max(_difference(_join(want), _join(new)) for want, new in pairs)


def _validate(before: onnx.ModelProto, edited: Edited) -> None:
    try:
        onnx.checker.check_model(edited.model)
    except onnx.checker.ValidationError as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidModel(f"{edited.what}: the edited model is invalid: {reason}") from error
    if (wrong := _inference_error(edited.model)) and not _inference_error(before):
        raise UnsupportedModel(f"{edited.what}: shapes do not match at {wrong}: {edited.advice}")


def _inference_error(model: onnx.ModelProto) -> str:
    """Return a text about the node at which strict shape inference fails, or "" if it succeeds."""
    try:
        onnx.shape_inference.infer_shapes(name_nodes(model), strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        return find_failing_node(model, str(error))
    return ""


def _refit(before: onnx.ModelProto, edited: Edited, feed: Feed) -> tuple[Feed, bool]:
    """Return input values in the size of the edited model.

    Returns:
        The values, and whether the original model also accepts them.
    """
    own = {spec.name: spec.shape for spec in graph_inputs(before)}
    now = {edited.origin.get(s.name, s.name): s.shape for s in graph_inputs(edited.model)}
    if all(_fits(feed[name], shape) for name, shape in now.items() if name in own):
        return feed, True
    new = sample(edited.model, _rows(before, feed))
    return new, all(name in new and _fits(new[name], shape) for name, shape in own.items())


def _fits(array: Array, shape: tuple[int, ...]) -> bool:
    """Return whether an array fits the shape of an input, without the batch dimension.

    `run` splits the rows of a batch into several calls if necessary.
    """
    return all(n in (-1, length) for length, n in zip(array.shape[1:], shape[1:], strict=True))


def _run(edited: Edited, outputs: Sequence[str], feed: Feed) -> dict[str, list[Array]]:
    try:
        return run(edited.model, outputs, feed, alone=not edited.together)
    except UnsupportedModel as error:
        raise UnsupportedModel(
            f"{edited.what}: ONNX Runtime fails at {error}: {edited.advice}"
        ) from error


def _rows(model: onnx.ModelProto, feed: Feed) -> int:
    return len(feed[first_input(model).name])


def _first_other(before: onnx.ModelProto, edited: Edited, feed: Feed, taken: Feed) -> str:
    """Return a text about the first node that computes different values in the edited model."""
    was = {name for node in before.graph.node for name in node.output}
    nodes = {name: node for node in edited.model.graph.node for name in node.output if name in was}
    nodes.pop("", None)
    want = run(before, list(nodes), feed, alone=True)
    have = run(edited.model, list(nodes), taken, alone=not edited.together)
    for name, node in nodes.items():
        if not _follows(want[name], have[name]):
            return (
                f"node {node.name or name!r} ({node.op_type}) computes other values after the "
                f"edit: {edited.advice}"
            )
    return f"an output does not have one row per image: {edited.advice}"


def _follows(want: Sequence[Array], have: Sequence[Array]) -> bool:
    """Return whether a tensor agrees in both models, whose numbers of calls may differ.

    It agrees if the arrays of all calls, joined along any dimension, agree. It also agrees if the
    arrays of all calls are equal.
    """
    joined = any(_agree(_join(want, i), _join(have, i)) for i in range(max(1, want[0].ndim)))
    return joined or all(_agree(want[0], one) for one in (*want, *have))


def _same(want: Sequence[Array], have: Sequence[Array], rows: int) -> bool:
    """Return whether an output agrees in both models.

    If the numbers of calls differ, the joined output must also have one row for each input row.
    """
    one, other = _join(want), _join(have)
    joined = len(want) != len(have)
    return _agree(one, other) and (not joined or one.shape[:1] == (rows,))


def _join(arrays: Sequence[Array], axis: int = 0) -> Array:
    if len(arrays) == 1 or arrays[0].ndim == 0:
        return arrays[0]
    try:
        return np.concatenate(arrays, axis)
    except ValueError:  # the lengths differ, because they depend on the values
        return arrays[0]


def _agree(want: Array, have: Array) -> bool:
    if want.dtype.kind not in "fiub":
        return _difference(want, have) == 0
    finite = np.where(np.isfinite(want), want, 0).astype(np.float64)
    return _difference(want, have) <= _MAX * float(np.abs(finite).max(initial=1e-6))


def _difference(want: Array, have: Array) -> float:
    """Return the largest absolute difference between two arrays.

    The result is inf if shapes, positions of NaN or values that are not numbers differ.
    """
    if want.shape != have.shape:
        return np.inf
    other = (want != have) & ~((want != want) & (have != have))
    if want.dtype.kind not in "fiub":
        return np.inf if other.any() else 0.0
    off = np.abs(want[other].astype(np.float64) - have[other].astype(np.float64))
    return float(np.where(np.isnan(off), np.inf, off).max(initial=0))
