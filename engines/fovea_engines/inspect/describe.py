"""Formats the result of a comparison as text and as JSON."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from fovea_engines.inspect.diff import Diff
from fovea_engines.inspect.figures import SmallSlices
from fovea_engines.inspect.network import Layer
from fovea_engines.inspect.verdict import Comparison
from fovea_preprocess.text import counted

_COSTLIEST = 3
_MAX_INDICES = 6


def verdict(diff: Diff) -> str:
    """Return a text about where and why the models diverge, or how well they agree."""
    text = _agreement(diff) if diff.first is None else _divergence(diff, diff.first)
    unjudged = sum(one.state == "not judged" for one in diff.layers)
    picks = next((one for one in diff.layers if one.state == "other picks"), None)
    if picks is not None:
        text += (
            f" {title(picks.a)} selects other elements, probably because rounding reorders close "
            f"scores; {counted(unjudged, 'tensor')} after it were not compared."
        )
    return text


def _agreement(diff: Diff) -> str:
    lost = [layer.name for layer in diff.unmatched_a if layer.is_output]
    unjudged = [layer.name for layer in diff.undecided if layer.name not in lost]
    if lost or unjudged:
        why = [f"output {', '.join(lost)} of A has no counterpart in B"] if lost else []
        nan = sum(one.figures.unknown for one in diff.layers if one.figures and one.a.is_output)
        values = f" ({counted(nan, 'value')} of outputs are NaN in both)" if nan else ""
        why += (
            [f"{', '.join(unjudged)}, an output of A, was not compared{values}"] if unjudged else []
        )
        return (
            f"No matched tensor diverges, but {' and '.join(why)}: it is unknown whether the "
            "models agree."
        )
    worst = min(diff.layers, key=lambda one: one.snr_db if one.state == "agrees" else inf)
    if not isfinite(worst.snr_db):
        return "No tensor diverges: all are equal."
    return (
        f"No tensor diverges: the lowest SNR is {decibels(worst.snr_db)}, of {title(worst.a)} "
        f"(under {diff.threshold_db:g} dB diverges)."
    )


def _divergence(diff: Diff, first: Comparison) -> str:
    inputs = decibels(first.inputs_snr_db)
    if first.is_jump:
        so_far = "are equal" if inputs == "equal" else f"agree to {inputs}"
        return (
            f"First divergent tensor: {title(first.a)}: {_wrong(first)} while its inputs {so_far}: "
            f"{'; '.join(diff.causes)}."
        )
    before = diff.layers[: diff.layers.index(first)]
    judged = [first, *(one for one in before if one.state == "agrees")]
    costliest = sorted(judged, key=lambda one: -one.noise_added)[:_COSTLIEST]
    steps = ", ".join(
        f"{one.a.name} ({decibels(one.inputs_snr_db)} to {decibels(one.snr_db)})"
        for one in costliest
    )
    return (
        f"First tensor under {diff.threshold_db:g} dB: {title(first.a)}: {_wrong(first)}, "
        f"{inputs} in its inputs. The error grew layer by layer, most in {steps}."
    )


def _wrong(one: Comparison) -> str:
    if one.figures is None:
        return f"its shape is {shape(one.a)} in A and {shape(one.b)} in B"
    if one.figures.broken:
        return f"{one.figures.broken} of its values are NaN or infinite in one of them only"
    wrong = f"SNR {one.snr_db:.1f} dB"
    if one.hidden is None:
        return wrong
    return (
        f"{wrong} at {_indices(one.hidden.positions)} of axis {one.hidden.axis}, whose values are "
        "far smaller than the others'"
    )


def _indices(positions: tuple[int, ...]) -> str:
    if positions[-1] - positions[0] == len(positions) - 1 and len(positions) > 1:
        return f"{positions[0]} to {positions[-1]}"
    more = ", ..." if len(positions) > _MAX_INDICES else ""
    return ", ".join(map(str, positions[:_MAX_INDICES])) + more


def title(layer: Layer) -> str:
    """Return the name of a layer with its operator, which helps to find it in the graph."""
    # OpenVINO reports no operator type, and ONNX operators often have no name.
    made_by = " ".join(word for word in (layer.op, layer.node) if word)
    return f"{layer.name} ({made_by})" if made_by else layer.name


def shape(layer: Layer) -> str:
    """Return the shape of a layer as text, e.g. "1x3x640x640"."""
    return "x".join(map(str, layer.shape)) or "scalar"


def decibels(snr_db: float) -> str:
    """Return an SNR in decibel as text, e.g. "12.3 dB", or "equal" if it is infinite."""
    return "equal" if snr_db == inf else f"{snr_db:.1f} dB"


def to_json(diff: Diff) -> dict[str, Any]:
    """Convert a comparison to dictionaries, lists, strings and numbers.

    If the tensors are equal, their SNR is infinite; then `snr_db` is null and `equal` is true.
    """
    by = [one.by for one in diff.layers]
    first = None
    if diff.first is not None:
        first = _layer(diff.layers.index(diff.first), diff.first) | {
            "inputs_snr_db": _number(diff.first.inputs_snr_db),
            "is_jump": diff.first.is_jump,
            "causes": list(diff.causes),
        }
    return {
        "a": {"path": str(diff.a), "precision": diff.precision_a},
        "b": {"path": str(diff.b), "precision": diff.precision_b},
        "images": list(diff.images),
        "threshold_db": diff.threshold_db,
        "agrees": diff.agrees,
        "verdict": verdict(diff),
        "first_divergent": first,
        "matched": {"by_name": by.count("name"), "by_order": by.count("order")},
        "unmatched": {
            "a": [layer.name for layer in diff.unmatched_a],
            "b": [layer.name for layer in diff.unmatched_b],
        },
        "tensors": [_layer(position, one) for position, one in enumerate(diff.layers)],
    }


def _layer(position: int, one: Comparison) -> dict[str, Any]:
    figures = one.figures
    entry: dict[str, Any] = {
        "position": position,
        "state": one.state,
        "matched_by": one.by,
        "is_output": one.a.is_output,
        "a": _side(one.a),
        "b": _side(one.b),
    }
    if figures is None:
        return entry
    entry["a"] |= _values(figures.range_a, figures.values[0])
    entry["b"] |= _values(figures.range_b, figures.values[1])
    return entry | {
        "cosine": figures.cosine,
        "snr_db": _number(figures.snr_db),
        "equal": figures.snr_db == inf and not figures.broken,
        "max_error": figures.max_error,
        "broken": figures.broken,
        "small_slices": figures.small and _small(figures.small),
    }


def _small(small: SmallSlices) -> dict[str, Any]:
    positions, snr_db = list(small.positions), _number(small.snr_db)
    return {"axis": small.axis, "positions": positions, "snr_db": snr_db}


def _side(layer: Layer) -> dict[str, Any]:
    return {
        "tensor": layer.name,
        "op": layer.op,
        "node": layer.node,
        "dtype": layer.dtype,
        "shape": list(layer.shape),
    }


def _values(range_: tuple[float, float], values: tuple[float, ...]) -> dict[str, Any]:
    return {"range": list(map(_number, range_)), "values": list(map(_number, values))}


def _number(value: float) -> float | None:
    """Return a number for JSON: None in place of infinity and NaN, which JSON does not have."""
    return value if isfinite(value) else None
