"""Checks a configuration before an engine is opened: contradictions, settings without an effect.

Texts and rules: `ValidateModelConfig` of Triton's model_config_utils.cc.
"""

from __future__ import annotations

import logging

from fovea_engines.backends.registry import BACKENDS
from fovea_engines.repository.config_pbtxt import ConfigTensor, ModelConfig, ModelInput
from fovea_engines.repository.config_scheduling import ModelDynamicBatching
from fovea_engines.repository.model_config import fields_in_source
from fovea_preprocess.errors import InvalidModel
from fovea_server.models.config.ensembles import check_data_flow

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
    # Parameters for Triton's backends; clients read all others in the configuration.
    # onnxruntime_backend
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
    # openvino_backend
    "parameters.CPU_EXTENSION_PATH",
    "parameters.INFERENCE_NUM_THREADS",
    "parameters.NUM_STREAMS",
    "parameters.PERFORMANCE_HINT",
    # tensorrt_backend
    "parameters.execution_context_allocation_strategy",
    "model_transaction_policy.decoupled (a request has one answer)",
    "ensemble_scheduling.max_inflight_requests",
)
_PLATFORMS = ("", "onnxruntime_onnx", "tensorrt_plan", "ensemble")


def check_config(config: ModelConfig, name: str) -> None:
    """Refuse a configuration, with its defaults, that no engine can serve.

    Raises:
        InvalidModel: the first fault, in Triton's words where it has them.
    """
    if config.name != name:
        raise InvalidModel(
            f"unexpected directory name '{name}' for model '{config.name}', directory name must "
            "equal model name"
        )
    _check_backend(config)
    if config.max_batch_size < 0:
        raise InvalidModel(f"'max_batch_size' must be non-negative value for {name}")
    if config.dynamic_batching is not None:
        _check_dynamic_batching(config, config.dynamic_batching)
    if config.response_cache.enable and config.sequence_batching is not None:
        raise InvalidModel(
            f"Response Cache does not currently support model {name} with sequence batching "
            "scheduler. Please disable the response cache."
        )
    if config.response_cache.enable and config.model_transaction_policy.decoupled:
        raise InvalidModel(
            f"Response Cache does not currently support model {name} with 'decoupled' transaction "
            "policy. Please disable the response cache."
        )
    _refuse_unserved(config)
    for given in config.input:
        _check_tensor(config, given, "model input ")
        _check_format(config, given)
    for returned in config.output:
        _check_tensor(config, returned, "model output ")
    for tensors in (config.input, config.output):
        names = [tensor.name for tensor in tensors]
        if twice := {tensor for tensor in names if names.count(tensor) > 1}:
            raise InvalidModel(
                f"'{min(twice)}' is described more than once for {name}: once will do"
            )


def _check_backend(config: ModelConfig) -> None:
    if config.platform not in _PLATFORMS:
        raise InvalidModel(
            f"unexpected platform type '{config.platform}' for {config.name}: Fovea serves "
            "onnxruntime_onnx, tensorrt_plan and ensemble; convert the model to ONNX"
        )
    if config.platform == "ensemble":
        _check_ensemble(config)
    elif config.ensemble_scheduling is not None:
        raise InvalidModel(
            f"ensemble scheduling cannot be set for model '{config.name}' whose platform is not "
            "ensemble"
        )
    elif config.backend and config.backend not in BACKENDS:
        raise InvalidModel(
            f"backend '{config.backend}' of {config.name} is not served: the backends are "
            f"{', '.join(BACKENDS)}; convert the model to ONNX"
        )


def _check_ensemble(config: ModelConfig) -> None:
    name = config.name
    if config.backend:
        raise InvalidModel(
            f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type"
        )
    if config.ensemble_scheduling is None:
        raise InvalidModel(
            f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble"
        )
    if config.instance_group:
        raise InvalidModel(f"instance group should not be specified for ensemble '{name}'")
    if config.optimization is not None:
        raise InvalidModel(f"optimization should not be specified for ensemble '{name}'")
    if config.model_warmup:
        raise InvalidModel(f"model_warmup can not be specified for ensemble '{name}'")
    if not config.steps:
        raise InvalidModel(f"must specify 'step' for ensemble '{name}'")
    check_data_flow(config)


def _refuse_unserved(config: ModelConfig) -> None:
    """Refuse settings that would give wrong answers if they were ignored."""
    for field in ("batch_input", "batch_output"):
        if field in fields_in_source(config):
            raise InvalidModel(
                f"{config.name} asks for {field}, which is not served: remove it, and what the "
                "model needs it for"
            )
    for tensor in (*config.input, *config.output):
        if tensor.is_shape_tensor and config.max_batch_size:
            raise InvalidModel(
                f"'{tensor.name}' of {config.name} is a shape tensor, which is not served in "
                "batches: set max_batch_size to 0"
            )
        if tensor.is_non_linear_format_io:
            raise InvalidModel(
                f"'{tensor.name}' of {config.name} has a format of its own, which is not served: "
                "build the engine with linear inputs and outputs, and remove "
                "is_non_linear_format_io"
            )


def _check_dynamic_batching(config: ModelConfig, batching: ModelDynamicBatching) -> None:
    name = config.name
    if any(size <= 0 for size in batching.preferred_batch_size):
        raise InvalidModel(f"dynamic batching preferred size must be positive for {name}")
    # The engine may give the size later; it is checked again then.
    largest = config.max_batch_size
    if largest and any(size > largest for size in batching.preferred_batch_size):
        raise InvalidModel(f"dynamic batching preferred size must be <= max batch size for {name}")
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            raise InvalidModel(f"default priority level must be in range [1, {levels}] for {name}")
        if any(not 1 <= level <= levels for level in batching.priority_queue_policy):
            raise InvalidModel(
                f"priority queue policy must have priority level in range [1, {levels}] for {name}"
            )
    if batching.preserve_ordering:
        _check_ordering(name, batching)


def _check_ordering(name: str, batching: ModelDynamicBatching) -> None:
    if batching.priority_levels > 1:
        raise InvalidModel(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        )
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.timeout_action == "DELAY" and policy.default_timeout_microseconds:
            raise InvalidModel(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                f"true for {name}"
            )


def _check_tensor(config: ModelConfig, tensor: ConfigTensor, prefix: str) -> None:
    if not tensor.name:
        raise InvalidModel(f"{prefix}must specify 'name' for {config.name}")
    about = f"{prefix}'{tensor.name}' "
    if tensor.data_type == "TYPE_INVALID":
        raise InvalidModel(f"{about}must specify 'data_type' for {config.name}")
    if not tensor.dims:
        raise InvalidModel(f"{about}must specify 'dims' for {config.name}")
    if any(dim < 1 and dim != -1 for dim in tensor.dims):
        raise InvalidModel(
            f"{about}dimension must be integer >= 1, or -1 to indicate a variable-size dimension "
            f"for {config.name}"
        )
    if tensor.reshape is not None:
        _check_reshape(config, tensor.dims, tensor.reshape.shape, about)


def _check_reshape(
    config: ModelConfig, dims: tuple[int, ...], shape: tuple[int, ...], about: str
) -> None:
    if not shape and config.max_batch_size == 0:
        raise InvalidModel(
            f"{about}cannot have empty reshape for non-batching model as scalar tensors are not "
            f"supported for {config.name}"
        )
    if any(dim < 1 and dim != -1 for dim in shape):
        raise InvalidModel(
            f"{about}reshape dimensions must be integer >= 1, or -1 to indicate a variable-size "
            f"dimension for {config.name}"
        )
    sizes, shapes = _trunks(dims), _trunks(shape)
    if len(sizes) != len(shapes):
        raise InvalidModel(
            f"{about}has different number of variable-size dimensions for dims and reshape for "
            f"{config.name}"
        )
    if sizes != shapes:
        raise InvalidModel(f"{about}has different size for dims and reshape for {config.name}")


def _trunks(dims: tuple[int, ...]) -> list[int]:
    """Multiply the sizes between variable dimensions: [2, 4, -1, 6] gives 8 and 6."""
    counts = [1]
    for dim in dims:
        if dim == -1:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


def _check_format(config: ModelConfig, tensor: ModelInput) -> None:
    if tensor.format != "FORMAT_NONE" and len(tensor.dims) != 3:
        raise InvalidModel(f"model input NHWC/NCHW require 3 dims for {config.name}")
    if tensor.allow_ragged_batch:
        raise InvalidModel(
            f"model input '{tensor.name}' of {config.name} asks for ragged batches, which are not "
            "served: remove allow_ragged_batch"
        )


def warn_of_ignored_settings(config: ModelConfig) -> None:
    """Log the settings that have no effect in this server in one line, if there are any."""
    given = fields_in_source(config)
    if all(len(group.gpus) <= 1 for group in config.instance_group):
        given -= {"instance_group.gpus"}
    if ignored := [text for text in _IGNORED if text.partition(" ")[0] in given]:
        log.warning(
            "model %s: these settings of its configuration have no effect here: %s",
            config.name,
            ", ".join(ignored),
        )
