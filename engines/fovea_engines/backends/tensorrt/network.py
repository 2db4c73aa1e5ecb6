"""Parses an ONNX model into TensorRT's network, and explains what TensorRT does not support."""

from __future__ import annotations

import re
from typing import Any

from fovea_engines.backends.tensorrt.compat import Runtime
from fovea_engines.backends.tensorrt.log import without_noise
from fovea_preprocess.errors import InvalidModel, UnsupportedModel

# Text in a parser's message -> advice. The first match is used.
_ADVICE = (
    (
        r"Plugin not found|plugin creator .* not found",
        "it is a plugin's: load the plugin's library with --plugin LIB.so, or export the model "
        "without it (suppression of boxes is Fovea's own work)",
    ),
    (
        r"UINT8|UInt8|[Zz]ero.?point",
        "TensorRT computes in int8 around zero and never in uint8: build from the float model with "
        "--precision int8",
    ),
    (
        r"must have same (input )?types|requires inputs with (the )?same type",
        "TensorRT converts nothing by itself: put a Cast in front of it, or export in float32",
    ),
    (
        r"[Dd]ynamic",
        "a size that is known only when it runs: fix the input with --size HxW, and export without "
        "dynamic axes but the batch",
    ),
    (
        r"Failed to open file|import initializer",
        "weights that lie in another file are missing: put them beside the model, or export it as "
        "one file",
    ),
    (
        r"convert ONNX dat[ae] type",
        "an input of a type that TensorRT lacks: export it in float32 or int64",
    ),
)
_UNKNOWN = "TensorRT has no such operator: export the model without it, e.g. at another opset"
_OTHERWISE = "export the model at another opset, or simplify it with onnxslim first"
_LONGEST = 300


def parse_network(runtime: Runtime, builder: Any, model: bytes) -> Any:
    """Parse a model into a strongly typed network.

    Args:
        runtime: the runtime of `builder`.
        builder: `Builder`.
        model: ONNX bytes in its final precision, including weights.

    Returns:
        `INetworkDefinition`.

    Raises:
        UnsupportedModel: TensorRT does not support a part of it; the message names the node, its
            operator, and what to do.
        InvalidModel: the bytes are no model.
    """
    trt = runtime.trt
    network = runtime.network(builder)
    parser = trt.OnnxParser(network, runtime.logger)
    taken = parser.parse(model)
    errors = [parser.get_error(position) for position in range(parser.num_errors)]
    # The parser takes some bytes that are no ONNX for an empty model.
    broken = any(error.code().name == "MODEL_DESERIALIZE_FAILED" for error in errors)
    if broken or (taken and network.num_outputs == 0):
        raise InvalidModel("TensorRT finds no model in it: is it a whole ONNX file?")
    if not taken:
        raise UnsupportedModel(_refusal(errors))
    return network


def _refusal(errors: list[Any]) -> str:
    if not errors:
        return f"TensorRT does not take the model, and does not say why: {_OTHERWISE}"
    first, *others = errors
    operator, said = first.node_operator(), without_noise(first.desc())
    node = first.node_name() or f"number {first.node()}"
    where = f"node {node!r} ({operator})" if operator else "the model"
    # The check that refuses an operator without an importer only says "false".
    reason = "" if said == "false" else f": {_short(said)}"
    more = sorted({error.node_operator() for error in others} - {operator, ""})
    also = f"; nor does it take {', '.join(more)}" if more else ""
    return f"TensorRT does not take {where}{reason}: {_advice(first, said)}{also}"


def _advice(error: Any, said: str) -> str:
    for pattern, advice in _ADVICE:
        if re.search(pattern, said):
            return advice
    return _UNKNOWN if error.code().name == "UNSUPPORTED_NODE" else _OTHERWISE


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
