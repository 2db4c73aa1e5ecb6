"""Builds a plan (a serialized TensorRT engine) from an ONNX model in its final precision."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fovea_engines.backends.tensorrt.caches import timing_cache
from fovea_engines.backends.tensorrt.cuda.quiet import QUIET
from fovea_engines.backends.tensorrt.layers import engine_layers, network_layers
from fovea_engines.backends.tensorrt.layers_file import PlanLayers
from fovea_engines.backends.tensorrt.log import out_of_memory, strip_noise
from fovea_engines.backends.tensorrt.monitor import Phases, progress_monitor, run_cancellable
from fovea_engines.backends.tensorrt.plugins import load_plugins
from fovea_engines.backends.tensorrt.runtime import Runtime
from fovea_engines.progress import Progress
from fovea_engines.repository.options import BuilderOptions, Profile
from fovea_preprocess.errors import BuildError, InvalidModel, InvalidOption, UnsupportedModel

# Pairs of a pattern in a parser message, and advice for the user. The first matching pair is used.
_ADVICE = (
    (
        r"Plugin not found|plugin creator .* not found",
        "the operator needs a plugin: load the plugin's library with --plugin LIB.so, or export "
        "the model without this operator (Fovea runs NMS itself)",
    ),
    (
        r"UINT8|UInt8|[Zz]ero.?point",
        "TensorRT only supports int8 with zero point 0, not uint8: build the float model with "
        "--precision int8",
    ),
    (
        r"must have same (input )?types|requires inputs with (the )?same type",
        "TensorRT does not convert types automatically: insert a Cast before this node, or export "
        "the model in float32",
    ),
    (
        r"[Dd]ynamic",
        "a size depends on the input: fix the input size with --size HxW, and export the model "
        "without dynamic axes except the batch",
    ),
    (
        r"Failed to open file|import initializer",
        "a file with external weights is missing: copy it into the model's directory, or export "
        "the model as one file",
    ),
    (
        r"convert ONNX dat[ae] type",
        "TensorRT does not support the type of an input: export it in float32 or int64",
    ),
)
_UNKNOWN = (
    "TensorRT does not support this operator: export the model without it, e.g. with another opset"
)
_OTHERWISE = "export the model with another opset, or simplify it with onnxslim first"
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Plan:
    """A serialized TensorRT engine, and the list of its layers."""

    data: bytes = field(repr=False)
    layers: PlanLayers = field(repr=False)


def build_plan(
    model: bytes,
    options: BuilderOptions,
    runtime: Runtime,
    progress: Progress | None = None,
    timings: Path | None = None,
) -> Plan:
    """Build a plan from an ONNX model. Ctrl-C stops the build.

    Args:
        model: content of an ONNX file that includes its weights.
        options: options of the build, e.g. the batch sizes.
        runtime: TensorRT or TensorRT for RTX.
        progress: object that receives the phases of the build.
        timings: file for kernel timings; see `timing_cache_file`. TensorRT for RTX does not use it.

    Raises:
        InvalidOption: an option does not fit the model, or this version of TensorRT.
        UnsupportedModel: TensorRT does not support the model. The message names the unsupported
            part.
        InvalidModel: the bytes are not an ONNX model.
        BuildError: TensorRT does not return a plan.
        BackendUnavailable: TensorRT cannot build on this machine.
    """
    runtime.check_capabilities(options.capabilities)
    load_plugins(runtime, options.plugins)
    progress = progress or Progress()
    phases = Phases(progress)
    with runtime.log.collect() as messages:
        builder = runtime.builder()
        network = parse_network(runtime, builder, model)
        config = _configure(runtime, builder, network, options)
        monitor = progress_monitor(runtime.trt, phases)
        config.progress_monitor = monitor
        # An ahead-of-time build does not measure kernels, so it needs no timing cache.
        file = None if runtime.ahead_of_time else timings
        with nullcontext() if file is None else timing_cache(config, file):
            with QUIET.synchronising():
                plan = run_cancellable(
                    lambda: builder.build_serialized_network(network, config), phases
                )
            if plan is None:
                raise _failure(messages)
    data = bytes(memoryview(plan))
    layers = None if runtime.ahead_of_time else engine_layers(runtime, data, progress)
    return Plan(data, layers or network_layers(network))


def _configure(runtime: Runtime, builder: Any, network: Any, options: BuilderOptions) -> Any:
    trt = runtime.trt
    config = builder.create_builder_config()
    config.builder_optimization_level = options.level
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    # An FP32 engine must compute the same values as its source. TF32 would round inputs to 10 bits
    # of mantissa.
    config.clear_flag(trt.BuilderFlag.TF32)
    runtime.allow_capture(config)
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    runtime.set_target(config, options.capabilities)
    add_profiles(builder, config, network, options.profiles)
    return config


def _failure(messages: Sequence[str]) -> BuildError:
    texts = [text for text in map(strip_noise, messages) if text]
    # Look for a message about memory first. TensorRT logs such a message for each kernel that needs
    # too much memory, but its last message only reports that no kernel is left.
    if (short := next(filter(out_of_memory, texts), None)) is not None:
        return BuildError(
            f"the GPU has too little free memory for this build ({short}): free some, or use a "
            "smaller --workspace"
        )
    reason = texts[-1] if texts else "no reason given"
    if re.search("no runners that implement|any implementation for node", reason):
        return UnsupportedModel(
            f"TensorRT has no kernel for a part of the model ({reason}): export the model without "
            "this part, or use a larger --workspace"
        )
    return BuildError(f"TensorRT failed to build the engine: {reason}")


def parse_network(runtime: Runtime, builder: Any, model: bytes) -> Any:
    """Parse ONNX bytes into a strongly typed `INetworkDefinition`.

    Raises:
        InvalidModel: the bytes are not an ONNX model.
        UnsupportedModel: TensorRT does not support a node. The message names the node and its
            operator, and gives advice.
    """
    trt = runtime.trt
    network = runtime.network(builder)
    parser = trt.OnnxParser(network, runtime.logger)
    taken = parser.parse(model)
    errors = [parser.get_error(position) for position in range(parser.num_errors)]
    # The parser accepts some bytes that are not ONNX, and returns an empty network for them.
    broken = any(error.code().name == "MODEL_DESERIALIZE_FAILED" for error in errors)
    if broken or (taken and network.num_outputs == 0):
        raise InvalidModel(
            "TensorRT found no model in the ONNX file: copy or export the file again"
        )
    if not taken:
        raise UnsupportedModel(_refusal(errors))
    return network


def _refusal(errors: list[Any]) -> str:
    if not errors:
        return f"TensorRT rejected the model without a reason: {_OTHERWISE}"
    first, *others = errors
    operator, text = first.node_operator(), strip_noise(first.desc())
    node = first.node_name() or f"number {first.node()}"
    where = f"node {node!r} ({operator})" if operator else "the model"
    # For an operator that the parser cannot import, the parser's message is only "false".
    reason = "" if text == "false" else f": {_shorten(text)}"
    more = sorted({error.node_operator() for error in others} - {operator, ""})
    also = f"; it also does not support {', '.join(more)}" if more else ""
    return f"TensorRT does not support {where}{reason}: {_advice(first, text)}{also}"


def _advice(error: Any, text: str) -> str:
    for pattern, advice in _ADVICE:
        if re.search(pattern, text):
            return advice
    return _UNKNOWN if error.code().name == "UNSUPPORTED_NODE" else _OTHERWISE


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def add_profiles(builder: Any, config: Any, network: Any, profiles: Sequence[Profile]) -> None:
    """Add optimization profiles to a build. A network with a fixed batch size needs no profiles.

    Raises:
        InvalidOption: the fixed batch size differs from the profiles.
        UnsupportedModel: a dimension other than the batch is dynamic.
    """
    inputs = [network.get_input(position) for position in range(network.num_inputs)]
    shapes = {tensor.name: tuple(tensor.shape) for tensor in inputs}
    for name, shape in shapes.items():
        _check_shape(name, shape, profiles)
    dynamic = {name: shape[1:] for name, shape in shapes.items() if shape[:1] == (-1,)}
    for wanted in profiles if dynamic else ():
        profile = builder.create_optimization_profile()
        for name, row in dynamic.items():
            batches = (wanted.min, wanted.opt, wanted.max)
            profile.set_shape(name, *((rows, *row) for rows in batches))
        config.add_optimization_profile(profile)


def _check_shape(name: str, shape: tuple[int, ...], profiles: Sequence[Profile]) -> None:
    if -1 in shape[1:]:
        raise UnsupportedModel(
            f"input {name!r} has the shape {_shape_text(shape)}, but only its batch size may be "
            "dynamic: fix the other dimensions, e.g. with --size 640x640"
        )
    if not shape or shape[0] == -1:
        return
    if max(profile.max for profile in profiles) != shape[0]:
        raise InvalidOption(
            f"profile {' and '.join(map(str, profiles))} does not fit input {name!r}, whose batch "
            f"size is fixed to {shape[0]}: leave --profile out, or export the model with a "
            "dynamic batch size"
        )


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join("?" if length == -1 else str(length) for length in shape)
