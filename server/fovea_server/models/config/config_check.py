"""Checks a configuration before an engine is opened, and logs settings that have no effect.

Source of the messages and rules: `ValidateModelConfig` of Triton's model_config_utils.cc.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from math import prod
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from fovea_engines.backends.registry import BACKENDS
from fovea_engines.device import usable_cores
from fovea_engines.repository.config_pbtxt import fields_in_source
from fovea_engines.repository.model_config import ConfigTensor, ModelConfig
from fovea_engines.repository.model_config_scheduling import ModelDynamicBatching
from fovea_preprocess.errors import InvalidModel, InvalidOption
from fovea_preprocess.mistakes import key_fault
from fovea_server.models.config.ensembles import data_flow_faults

Document = TypeVar("Document", bound=BaseModel)

log = logging.getLogger(__name__)

_IGNORED = (
    "optimization.execution_accelerators",
    "optimization.graph",
    "optimization.priority",
    "optimization.eager_batching",
    "optimization.gather_kernel_buffer_threshold",
    "runtime",
    "model_operations",
    "model_repository_agents",
    "model_metrics",
    "instance_group.rate_limiter",
    "instance_group.host_policy",
    "instance_group.profile",
    "instance_group.secondary_devices",
    "instance_group.gpus (one GPU is used)",
    # Parameters of Triton's backends, which have no effect here. All other parameters are for
    # clients, so they cause no warning.
    "parameters.intra_op_thread_count",
    "parameters.inter_op_thread_count",
    "parameters.execution_mode",
    "parameters.enable_mem_arena",
    "parameters.enable_mem_pattern",
    "parameters.memory.enable_memory_arena_shrinkage",
    "parameters.cudnn_conv_algo_search",
    "parameters.cudnn_conv_use_max_workspace",
    "parameters.gpu_mem_limit",
    "parameters.arena_extend_strategy",
    "parameters.do_copy_in_default_stream",
    "parameters.share_session_between_instances",
    # Parameters of Triton's openvino_backend.
    "parameters.CPU_EXTENSION_PATH",
    "parameters.PERFORMANCE_HINT",
    # Parameters of Triton's tensorrt_backend.
    "parameters.execution_context_allocation_strategy",
    "ensemble_scheduling.max_inflight_requests",
)
# Limits on the number of instances of a model: `_INSTANCES_PER_CORE` for each core, or
# `_MIN_INSTANCES` if that is more. A thread that waits for an instance takes 130 KB of memory, and
# more threads make no engine faster.
_MIN_INSTANCES, _INSTANCES_PER_CORE = 64, 16
_MAX_WARMUP_RUNS = 10_000
_MAX_OF_A_STATE = 1 << 24
_PLATFORMS = ("", "onnxruntime_onnx", "tensorrt_plan", "ensemble")
# Names of file formats or platforms that users write as a backend's name, with the backend's name.
# The next table has the names that users write as a platform.
_MEANT_BACKENDS = {
    "onnx": "onnxruntime",
    "ort": "onnxruntime",
    "onnxruntime_onnx": "onnxruntime",
    "trt": "tensorrt",
    "tensorrt_plan": "tensorrt",
}
_MEANT_PLATFORMS = {
    "onnx": "onnxruntime_onnx",
    "onnxruntime": "onnxruntime_onnx",
    "tensorrt": "tensorrt_plan",
}
_ALIKE = 0.85  # least similarity of a typing error; tensorrt_llm and others are less similar


def validate(kind: type[Document], given: object) -> Document:
    """Make a document of type `kind` from parsed JSON, TOML or options.

    Raises:
        InvalidOption: a value is invalid; the message names the first wrong key.
    """
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        # A misspelt key causes two errors, "missing" for the right key and "unknown" for the wrong
        # key. The first error has the better message.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        raise InvalidOption(key_fault(first, kind.model_fields)) from None


def check_config(config: ModelConfig, name: str) -> None:
    """Raise InvalidModel for the first fault of a configuration.

    If Triton has the same check, the message has Triton's wording.
    """
    if (fault := next(_faults(config, name), None)) is not None:
        raise InvalidModel(fault)


def check_amounts(config: ModelConfig) -> None:
    """Check the numbers of instances and warm-up runs, and the sizes of states.

    Raises:
        InvalidModel: a number or a size exceeds its limit.
    """
    name, most = config.name, max(_MIN_INSTANCES, _INSTANCES_PER_CORE * usable_cores())
    if config.instances > most:
        raise InvalidModel(
            f"instance_group of {name} has {config.instances} instances, over the limit of {most} "
            "on this machine: lower the count; one per core is enough on a CPU"
        )
    runs = sum(max(1, sample.count) for sample in config.model_warmup)
    if runs > _MAX_WARMUP_RUNS:
        raise InvalidModel(
            f"model_warmup of {name} has {runs} runs, over the limit of {_MAX_WARMUP_RUNS}: lower "
            "the count of its samples"
        )
    for state in config.sequence_batching.state if config.sequence_batching else ():
        if (elements := prod(max(1, size) for size in state.dims)) > _MAX_OF_A_STATE:
            raise InvalidModel(
                f"state '{state.input_name}' of {name} has {elements} elements for each sequence, "
                f"over the limit of {_MAX_OF_A_STATE}: correct its dims"
            )


def _faults(config: ModelConfig, name: str) -> Iterator[str]:
    if config.name != name:
        yield (
            f"unexpected directory name '{name}' for model '{config.name}', directory name must "
            "equal model name"
        )
    yield from _backend_faults(config)
    if config.max_batch_size < 0:
        yield f"'max_batch_size' must be non-negative value for {name}"
    if config.dynamic_batching is not None:
        yield from _batching_faults(config, config.dynamic_batching)
    about_cache = f"Response Cache does not currently support model {name} with "
    if config.response_cache.enable and config.sequence_batching is not None:
        yield f"{about_cache}sequence batching scheduler. Please disable the response cache."
    if config.response_cache.enable and config.model_transaction_policy.decoupled:
        yield f"{about_cache}'decoupled' transaction policy. Please disable the response cache."
    yield from _unserved(config)
    yield from _interface_faults(config)


def _interface_faults(config: ModelConfig) -> Iterator[str]:
    name = config.name
    for given in config.input:
        yield from _tensor_faults(config, given, "model input ")
        if given.format != "FORMAT_NONE" and len(given.dims) != 3:
            yield f"model input NHWC/NCHW require 3 dims for {name}"
        if given.allow_ragged_batch:
            yield (
                f"model input '{given.name}' of {name} uses ragged batches, which are not "
                "supported: remove allow_ragged_batch"
            )
    for returned in config.output:
        yield from _tensor_faults(config, returned, "model output ")
    for tensors in (config.input, config.output):
        names = [tensor.name for tensor in tensors]
        if twice := {tensor for tensor in names if names.count(tensor) > 1}:
            yield f"'{min(twice)}' is described more than once for {name}: describe it once"


def _backend_faults(config: ModelConfig) -> Iterator[str]:
    if config.platform not in _PLATFORMS:
        yield (
            f"unexpected platform type '{config.platform}' for {config.name}: Fovea serves "
            "onnxruntime_onnx, tensorrt_plan and ensemble; "
            f"{_cure(config.platform, _MEANT_PLATFORMS)}"
        )
    if config.platform == "ensemble":
        yield from _ensemble_faults(config)
    elif config.ensemble_scheduling is not None:
        yield (
            f"ensemble scheduling cannot be set for model '{config.name}' whose platform is not "
            "ensemble"
        )
    elif config.backend == "python":
        yield (
            f"backend 'python' of {config.name} is not supported. Fovea itself decodes, resizes "
            "and normalises images, and suppresses overlapping boxes: send images to "
            "/v1/models/MODEL/predict, or as bytes over v2 (docs/reference/triton.md). Convert "
            "any other Python model to ONNX"
        )
    elif config.backend and config.backend not in BACKENDS:
        yield (
            f"backend '{config.backend}' of {config.name} is not supported: the backends are "
            f"{', '.join(BACKENDS)}; {_cure(config.backend, _MEANT_BACKENDS)}"
        )


def _cure(given: str, meant: Mapping[str, str]) -> str:
    close = get_close_matches(given.lower(), meant.values(), 1, _ALIKE)
    other = meant.get(given.lower()) or next(iter(close), "")
    return f"did you mean {other}?" if other else "convert the model to ONNX"


def _ensemble_faults(config: ModelConfig) -> Iterator[str]:
    name = config.name
    if config.backend:
        yield f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type"
    if config.ensemble_scheduling is None:
        yield f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble"
    if config.instance_group:
        yield f"instance group should not be specified for ensemble '{name}'"
    if config.optimization is not None:
        yield f"optimization should not be specified for ensemble '{name}'"
    if config.model_warmup:
        yield f"model_warmup can not be specified for ensemble '{name}'"
    if not config.steps:
        yield f"must specify 'step' for ensemble '{name}'"
    yield from data_flow_faults(config)


def _unserved(config: ModelConfig) -> Iterator[str]:
    """Yield a fault for each setting that would give wrong results if the server ignored it."""
    given = fields_in_source(config)
    for field in ("batch_input", "batch_output"):
        if field in given:
            yield (
                f"{config.name} uses {field}, which is not supported: remove the field, and "
                "change the model so that it works without"
            )
    for tensor in (*config.input, *config.output):
        if tensor.is_shape_tensor and config.max_batch_size:
            yield (
                f"'{tensor.name}' of {config.name} is a shape tensor, which is not supported in "
                "batches: set max_batch_size to 0"
            )
        if tensor.is_non_linear_format_io:
            yield (
                f"'{tensor.name}' of {config.name} has a non-linear format, which is not "
                "supported: build the engine with linear inputs and outputs, and remove "
                "is_non_linear_format_io"
            )


def _batching_faults(config: ModelConfig, batching: ModelDynamicBatching) -> Iterator[str]:
    name, preferred, levels = config.name, batching.preferred_batch_size, batching.priority_levels
    if any(size <= 0 for size in preferred):
        yield f"dynamic batching preferred size must be positive for {name}"
    # The engine may set max_batch_size later. Then this check runs again.
    if config.max_batch_size and any(size > config.max_batch_size for size in preferred):
        yield f"dynamic batching preferred size must be <= max batch size for {name}"
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            yield f"default priority level must be in range [1, {levels}] for {name}"
        if any(not 1 <= level <= levels for level in batching.priority_queue_policy):
            yield (
                f"priority queue policy must have priority level in range [1, {levels}] for {name}"
            )
    if not batching.preserve_ordering:
        return
    if levels > 1:
        yield f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.timeout_action == "DELAY" and policy.default_timeout_microseconds:
            yield (
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                f"true for {name}"
            )


def _tensor_faults(config: ModelConfig, tensor: ConfigTensor, prefix: str) -> Iterator[str]:
    about, model = f"{prefix}'{tensor.name}' ", config.name
    any_size = f"must be integer >= 1, or -1 to indicate a variable-size dimension for {model}"
    if not tensor.name:
        yield f"{prefix}must specify 'name' for {model}"
    if tensor.data_type == "TYPE_INVALID":
        yield f"{about}must specify 'data_type' for {model}"
    if not tensor.dims:
        yield f"{about}must specify 'dims' for {model}"
    if any(dim < 1 and dim != -1 for dim in tensor.dims):
        yield f"{about}dimension {any_size}"
    if tensor.reshape is None:
        return
    shape = tensor.reshape.shape
    if not shape and config.max_batch_size == 0:
        yield (
            f"{about}cannot have empty reshape for non-batching model as scalar tensors are not "
            f"supported for {model}"
        )
    if any(dim < 1 and dim != -1 for dim in shape):
        yield f"{about}reshape dimensions {any_size}"
    sizes, shapes = _trunks(tensor.dims), _trunks(shape)
    if len(sizes) != len(shapes):
        yield (
            f"{about}has different number of variable-size dimensions for dims and reshape for "
            f"{model}"
        )
    if sizes != shapes:
        yield f"{about}has different size for dims and reshape for {model}"


def _trunks(dims: tuple[int, ...]) -> list[int]:
    """Multiply the sizes between the variable dimensions (-1): [2, 4, -1, 6] gives [8, 6]."""
    counts = [1]
    for dim in dims:
        if dim == -1:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


def warn_of_settings(config: ModelConfig) -> None:
    """Log the settings that have no effect in this server, and the setting "decoupled"."""
    if config.model_transaction_policy.decoupled:
        log.warning(
            "model %s is decoupled: only gRPC streams may run it, as in Triton; remove "
            "model_transaction_policy to allow all other requests",
            config.name,
        )
    given = fields_in_source(config)
    if all(len(group.gpus) <= 1 for group in config.instance_group):
        given -= {"instance_group.gpus"}
    if ignored := [text for text in _IGNORED if text.partition(" ")[0] in given]:
        log.warning(
            "model %s: these settings of its configuration have no effect here: %s",
            config.name,
            ", ".join(ignored),
        )
