"""Builds a serialized engine, the plan, from an ONNX model in its final precision."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fovea_engines.backends.tensorrt.capabilities import check_capabilities
from fovea_engines.backends.tensorrt.compat import Runtime, tensor_spec
from fovea_engines.backends.tensorrt.layers import PlanLayers, engine_layers, network_layers
from fovea_engines.backends.tensorrt.log import without_noise
from fovea_engines.backends.tensorrt.monitor import Phases, progress_monitor, run_cancellable
from fovea_engines.backends.tensorrt.network import parse_network
from fovea_engines.backends.tensorrt.plugins import load_plugins
from fovea_engines.backends.tensorrt.timing_cache import timing_cache
from fovea_engines.progress import Progress
from fovea_engines.repository.options import BuilderOptions, Profile
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import BuildError, InvalidOption, UnsupportedModel


@dataclass(frozen=True, slots=True)
class Plan:
    """A serialized engine, described without loading it.

    Attributes:
        data: its bytes.
        inputs: in the model's order.
        outputs: in the model's order.
        layers: the layers of the plan.
        warnings: TensorRT's warnings.
    """

    data: bytes = field(repr=False)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    layers: PlanLayers = field(repr=False)
    warnings: tuple[str, ...] = field(repr=False)


def build_plan(
    model: bytes,
    options: BuilderOptions,
    runtime: Runtime,
    progress: Progress | None = None,
    timings: Path | None = None,
) -> Plan:
    """Build a plan.

    Args:
        model: ONNX bytes, including weights, in its final precision.
        options: options of the build.
        runtime: from `load_runtime`.
        progress: reports TensorRT's phases.
        timings: file for TensorRT's timings, from `timing_cache_file`; None, and TensorRT-RTX, keep
            none.

    Raises:
        InvalidOption: an option does not fit the model or this TensorRT.
        UnsupportedModel: TensorRT does not support the model; the message says which part.
        InvalidModel: the bytes are no model.
        BuildError: TensorRT returns no plan.
        BackendUnavailable: TensorRT cannot build on this machine.
        KeyboardInterrupt: Ctrl-C; the build has stopped.
    """
    check_capabilities(options.capabilities, runtime)
    load_plugins(runtime, options.plugins)
    phases = Phases(progress or Progress())
    with runtime.log.collect() as messages:
        builder = runtime.builder()
        network = parse_network(runtime, builder, model)
        config = _configure(runtime, builder, network, options)
        monitor = progress_monitor(runtime.trt, phases)
        config.progress_monitor = monitor
        with _timings(runtime, config, timings):
            plan = run_cancellable(
                lambda: builder.build_serialized_network(network, config), phases
            )
            if plan is None:
                raise _failure(messages)
    data = bytes(memoryview(plan))
    inputs = map(network.get_input, range(network.num_inputs))
    outputs = map(network.get_output, range(network.num_outputs))
    return Plan(
        data=data,
        inputs=tuple(map(tensor_spec, inputs)),
        outputs=tuple(map(tensor_spec, outputs)),
        layers=_layers(runtime, data, network),
        warnings=tuple(messages),
    )


def _configure(runtime: Runtime, builder: Any, network: Any, options: BuilderOptions) -> Any:
    trt = runtime.trt
    config = builder.create_builder_config()
    config.builder_optimization_level = options.level
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    # Otherwise float32 would be multiplied as TF32, with 10 bits; FP32 must equal the source.
    config.clear_flag(trt.BuilderFlag.TF32)
    runtime.allow_capture(config)
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    runtime.set_target(config, options.capabilities)
    add_profiles(builder, config, network, options.profiles)
    return config


def _timings(runtime: Runtime, config: Any, file: Path | None) -> AbstractContextManager[None]:
    return nullcontext() if file is None or runtime.ahead_of_time else timing_cache(config, file)


def _layers(runtime: Runtime, plan: bytes, network: Any) -> PlanLayers:
    loaded = None if runtime.ahead_of_time else engine_layers(runtime, plan)
    return loaded or network_layers(network)


def _failure(messages: Sequence[str]) -> BuildError:
    said = [text for text in map(without_noise, messages) if text]
    reason = said[-1] if said else "it does not say why"
    if re.search("no runners that implement|any implementation for node", reason):
        return UnsupportedModel(
            f"TensorRT has no kernel for a part of the model ({reason}): export the model without "
            "it, or give more --workspace"
        )
    if re.search("out of ?memory|insufficient memory", reason, re.IGNORECASE):
        return BuildError(
            f"the GPU has not the memory for this build ({reason}): free it, or give less "
            "--workspace"
        )
    return BuildError(f"TensorRT gives no plan: {reason}")


def add_profiles(builder: Any, config: Any, network: Any, profiles: Sequence[Profile]) -> None:
    """Add profiles to a build; a network with a fixed batch gets none.

    Args:
        builder: `Builder`.
        config: `IBuilderConfig`.
        network: `INetworkDefinition`.
        profiles: at least one.

    Raises:
        InvalidOption: the network's batch is fixed to another size.
        UnsupportedModel: more than the batch of an input is dynamic.
    """
    shapes = {}
    for position in range(network.num_inputs):
        tensor = network.get_input(position)
        shapes[tensor.name] = tuple(tensor.shape)
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
            f"input {name!r} is {_shape_text(shape)}: only its batch may be dynamic here; "
            "fix the others, e.g. with --size 640x640"
        )
    if not shape or shape[0] == -1:
        return
    for profile in profiles:
        if profile.max != shape[0]:
            raise InvalidOption(
                f"profile {profile} does not fit input {name!r}, whose batch is fixed to "
                f"{shape[0]}: leave --profile out, or export with a dynamic batch"
            )


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join("?" if length == -1 else str(length) for length in shape)
