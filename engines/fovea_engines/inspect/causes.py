"""Finds the reasons why a layer with equal inputs computes different results in two models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

import numpy as np

from fovea_engines.inspect.figures import decibel, dot
from fovea_engines.inspect.network import INPUT, Network, Operator
from fovea_engines.inspect.verdict import Comparison
from fovea_engines.session import Array

# Margin in decibel. A difference between weights explains a divergence if the weights' SNR is less
# than the tensor's SNR plus this margin.
_EXPLAINS_DB = 20.0
# Highest SNR of weights in decibel that explains a divergence in FP16. Weights that are only
# rounded to float16 have an SNR of about 73 dB.
_HALF_DB = 60.0
_HALF_MAX = float(np.finfo(np.float16).max)
# A weight of B counts as a multiple of A's weight if scaling A's weight raises the SNR by this
# number of decibels.
_MULTIPLE_DB = 20.0
# A quantisation range clips values if it ends below this fraction of the largest value.
_CLIPPED = 0.9
_COMMUTE = {"Add", "Mul", "Max", "Min", "Sum", "And", "Or", "Xor", "Equal"}
_MAX_SHOWN = 8
_PLAIN = (int, float, str, bytes, list)  # attributes without tensors and subgraphs


def find_causes(
    a: Network, b: Network, first: Comparison, names: Mapping[str, str]
) -> tuple[str, ...]:
    """Return texts about the differences in the computation of a layer whose inputs agree.

    Args:
        a: first model.
        b: second model.
        first: pair of layers to compare.
        names: name of each paired layer in the first model -> its name in the second model.

    Returns:
        At least one text.
    """
    one, other = a.operator(first.a), b.operator(first.b)
    found = [*_overflow(first), *differences(a, b, first)]
    if one is None or other is None:
        return tuple(found or _clipping(first) or [_unseen(first)])
    if first.a.op == first.b.op:
        found += _sources(a, b, first, names)
    return tuple(found or _clipping(first) or [_rounding(first)])


def differences(a: Network, b: Network, pair: Comparison) -> list[str]:
    """Return texts about the differences in a layer's operator, attributes and constants.

    If an operator is unknown, return [].
    """
    one, other = a.operator(pair.a), b.operator(pair.b)
    if one is None or other is None:
        return []
    if pair.a.op != pair.b.op:
        return [f"A computes {pair.a.op}, but B computes {pair.b.op}"]
    limit_db = pair.snr_db + _EXPLAINS_DB
    if "fp16" in (a.precision, b.precision):
        limit_db = min(limit_db, _HALF_DB)
    return [*_attributes(one, other), *_constants(one, other, limit_db)]


def _overflow(first: Comparison) -> Iterator[str]:
    if first.figures is None or first.b.dtype != "float16":
        return
    if first.figures.largest_lost > _HALF_MAX:
        yield (
            f"A reaches {first.figures.largest_lost:.4g} where B is not finite, and the maximum "
            f"of float16 is {_HALF_MAX:.0f}: this layer overflows, so keep it in float32"
        )


def _attributes(one: Operator, other: Operator) -> Iterator[str]:
    for name in sorted(one.given | other.given):
        want, have = (side.attributes.get(name, "not given") for side in (one, other))
        if isinstance(want, _PLAIN) and isinstance(have, _PLAIN) and want != have:
            yield f"its {name} is {_text(want)} in A and {_text(have)} in B"


def _constants(one: Operator, other: Operator, limit_db: float) -> Iterator[str]:
    if len(one.constants) != len(other.constants):
        names = [", ".join(n for n, _ in side.constants) or "none" for side in (one, other)]
        yield f"its constants are {names[0]} in A and {names[1]} in B"
        return
    for (name, want), (_, have) in zip(one.constants, other.constants, strict=True):
        if want.size != have.size:
            yield f"its {name} has shape {list(want.shape)} in A and {list(have.shape)} in B"
        elif want.size > 1 and "float" in want.dtype.name:
            yield from _weights(name, want.astype(np.float64), have.astype(np.float64), limit_db)
        elif not np.allclose(want.ravel(), have.ravel(), rtol=1e-3, equal_nan=True):
            yield f"its {name} is {_text(want.tolist())} in A and {_text(have.tolist())} in B"


def _weights(name: str, want: Array, have: Array, limit_db: float) -> Iterator[str]:
    have = have.reshape(want.shape)
    finite, also = np.isfinite(want), np.isfinite(have)
    if (finite != also).any():
        counts = [int(np.count_nonzero(~mask)) for mask in (finite, also)]
        yield f"{counts[0]} values of its {name} are NaN or infinite in A, and {counts[1]} in B"
        return
    want, have = np.where(finite, want, 0), np.where(finite, have, 0)
    off_db = _snr_db(want, have)
    if off_db >= limit_db:
        return
    power = dot(want, want)
    ratio = dot(want, have) / power if power else 0.0
    if _snr_db(ratio * want, have) >= off_db + _MULTIPLE_DB:
        yield f"its {name} is {ratio:.4g} times A's"
        return
    channels = sum(_snr_db(w, h) < limit_db for w, h in zip(want, have, strict=True))
    where = "" if channels == len(want) else f" in {channels} of {len(want)} channels"
    yield f"its {name} differs between A and B{where}: SNR {off_db:.1f} dB"


def _snr_db(want: Array, have: Array) -> float:
    noise = want - have
    return decibel(dot(want, want), dot(noise, noise))


def _sources(a: Network, b: Network, first: Comparison, names: Mapping[str, str]) -> Iterator[str]:
    want = [names.get(a.layers[position].name) for position in first.a.inputs]
    have = [b.layers[position].name for position in first.b.inputs]
    if None in want or first.a.op in _COMMUTE or want == have:
        return
    if set(want) == set(have):
        yield "its inputs have another order"
    else:
        yield (
            f"it reads {', '.join(have)} in B; the counterparts of A's inputs are "
            f"{', '.join(map(str, want))}"
        )


def _clipping(first: Comparison) -> list[str]:
    if first.figures is None or first.b.tensor == first.b.name:
        return []
    (low, high), (low_b, high_b) = first.figures.range_a, first.figures.range_b
    if low_b > _CLIPPED * low < 0 or high_b < _CLIPPED * high > 0:
        return [
            f"B has values from {low_b:.4g} to {high_b:.4g}, but A from {low:.4g} to {high:.4g}: "
            "the range of the quantisation is too narrow"
        ]
    return []


def _unseen(first: Comparison) -> str:
    if first.a.op == INPUT:
        return "it is an input, and one model rounds it"
    return (
        "the layers of an engine cannot be compared; if the other model is the ONNX file of its "
        "build, the engine's runtime computes it wrongly"
    )


def _rounding(first: Comparison) -> str:
    same = "operator, attributes and constants are the same"
    if first.inputs_snr_db == inf:
        return (
            f"{same}: it is computed in another precision, or its opset defines the operator "
            "differently"
        )
    return f"{same}, so it amplifies the error of its inputs"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        more = f", ... ({len(value)})" if len(value) > _MAX_SHOWN else ""
        return f"[{', '.join(map(_text, value[:_MAX_SHOWN]))}{more}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
