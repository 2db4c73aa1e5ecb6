"""INT8 that an exporter wrote, in the encoding that a runtime takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fovea_engines.graph.wiring import Wiring, rebuild
from fovea_engines.precision.encoding import Encoding
from fovea_engines.precision.narrow import narrow_weights
from fovea_preprocess.errors import UnsupportedModel

if TYPE_CHECKING:
    import onnx

_KINDS = {Encoding.SIGNED: (np.int8, 0), Encoding.UNSIGNED: (np.uint8, 128)}


def quantised_share(model: onnx.ModelProto) -> tuple[int, int]:
    """How many layers take quantised inputs, and how many layers there are."""
    wiring = Wiring(model)
    layers = wiring.layers()
    done = [n for n in layers if _made_by(wiring, n.input[0], "DequantizeLinear")]
    return len(done), len(layers)


def recode(model: onnx.ModelProto, encoding: Encoding) -> onnx.ModelProto:
    """A copy of a quantised model with its activations in an encoding.

    int8 around 0 and uint8 around 128 stand for the same values, step for step, so nothing is
    rounded. What is neither stays as it is: it has no counterpart. Weights are halved where this
    CPU needs 7 bits.

    Args:
        model: with Q/DQ pairs.
        encoding: `SIGNED` for TensorRT, `UNSIGNED` for CPUs.
    """
    import onnx
    from onnx.numpy_helper import from_array, to_array

    recoded = onnx.ModelProto()
    recoded.CopyFrom(model)
    wiring = Wiring(recoded)
    dtype, middle = _KINDS[encoding]
    other, other_middle = _KINDS[
        Encoding.UNSIGNED if encoding is Encoding.SIGNED else Encoding.SIGNED
    ]
    made: set[str] = set()
    for pair in wiring.nodes:
        if pair.op_type != "QuantizeLinear" or pair.input[0] in wiring.constants:
            continue
        takers = wiring.consumers[pair.output[0]]
        if any(taker.op_type != "DequantizeLinear" for taker in takers):
            continue  # the integers themselves are computed with
        zero = wiring.constants.get(pair.input[2]) if len(pair.input) > 2 else None
        if zero is None:
            raise UnsupportedModel(
                f"{pair.name} quantises without a constant zero point: export it with one"
            )
        old = to_array(zero)
        if old.dtype != other or (old != other_middle).any():
            continue
        name = f"{zero.name}/{encoding.value}"
        if name not in made:  # exporters let pairs share one
            made.add(name)
            recoded.graph.initializer.append(from_array(np.full_like(old, middle, dtype), name))
        for node in (pair, *takers):
            del node.input[2:]
            node.input.append(name)
    rebuild(recoded, iter(wiring.nodes))
    if encoding.weight_bits == 7:
        narrow_weights(recoded)
    return recoded


def _made_by(wiring: Wiring, tensor: str, op_type: str) -> bool:
    node = wiring.producer.get(tensor)
    return node is not None and node.op_type == op_type
