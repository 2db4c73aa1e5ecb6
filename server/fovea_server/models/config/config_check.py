"""Checks a configuration for contradictions, before an engine is opened.

Texts and rules: `ValidateModelConfig` of Triton's model_config_utils.cc.
"""

from __future__ import annotations

from typing import Any

from fovea_engines.backends.registry import BACKENDS
from fovea_engines.repository.triton_messages import model_config_messages
from fovea_preprocess.errors import InvalidModel
from fovea_server.models.config.ensembles import check_data_flow

_PLATFORMS = ("", "onnxruntime_onnx", "tensorrt_plan", "ensemble")


def check_config(message: Any, name: str) -> None:
    """Refuse a configuration that no engine can serve.

    Args:
        message: the `ModelConfig`.
        name: of the model's folder.

    Raises:
        InvalidModel: the first fault, in Triton's words where it has them.
    """
    if message.name != name:
        raise InvalidModel(
            f"unexpected directory name '{name}' for model '{message.name}', directory name must "
            "equal model name"
        )
    _check_backend(message)
    if message.max_batch_size < 0:
        raise InvalidModel(f"'max_batch_size' must be non-negative value for {name}")
    if message.HasField("dynamic_batching"):
        _check_dynamic_batching(message)
    if message.response_cache.enable and message.HasField("sequence_batching"):
        raise InvalidModel(
            f"Response Cache does not currently support model {name} with sequence batching "
            "scheduler. Please disable the response cache."
        )
    if message.response_cache.enable and message.model_transaction_policy.decoupled:
        raise InvalidModel(
            f"Response Cache does not currently support model {name} with 'decoupled' transaction "
            "policy. Please disable the response cache."
        )
    _refuse_unserved(message)
    for tensor in message.input:
        _check_tensor(message, tensor, "model input ")
        _check_format(message, tensor)
    for tensor in message.output:
        _check_tensor(message, tensor, "model output ")
    for tensors in (message.input, message.output):
        names = [tensor.name for tensor in tensors]
        if twice := {tensor for tensor in names if names.count(tensor) > 1}:
            raise InvalidModel(
                f"'{min(twice)}' is described more than once for {name}: once will do"
            )


def _check_backend(message: Any) -> None:
    if message.platform not in _PLATFORMS:
        raise InvalidModel(
            f"unexpected platform type '{message.platform}' for {message.name}: Fovea serves "
            "onnxruntime_onnx, tensorrt_plan and ensemble; convert the model to ONNX"
        )
    if message.platform == "ensemble":
        _check_ensemble(message)
    elif message.HasField("ensemble_scheduling"):
        raise InvalidModel(
            f"ensemble scheduling cannot be set for model '{message.name}' whose platform is not "
            "ensemble"
        )
    elif message.backend and message.backend not in BACKENDS:
        raise InvalidModel(
            f"backend '{message.backend}' of {message.name} is not served: the backends are "
            f"{', '.join(BACKENDS)}; convert the model to ONNX"
        )


def _check_ensemble(message: Any) -> None:
    name = message.name
    if message.backend:
        raise InvalidModel(
            f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type"
        )
    if not message.HasField("ensemble_scheduling"):
        raise InvalidModel(
            f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble"
        )
    if message.instance_group:
        raise InvalidModel(f"instance group should not be specified for ensemble '{name}'")
    if message.HasField("optimization"):
        raise InvalidModel(f"optimization should not be specified for ensemble '{name}'")
    if message.model_warmup:
        raise InvalidModel(f"model_warmup can not be specified for ensemble '{name}'")
    if not message.ensemble_scheduling.step:
        raise InvalidModel(f"must specify 'step' for ensemble '{name}'")
    check_data_flow(message)


def _refuse_unserved(message: Any) -> None:
    """Refuse settings that would give wrong answers if they were ignored."""
    for field in ("batch_input", "batch_output"):
        if getattr(message, field):
            raise InvalidModel(
                f"{message.name} asks for {field}, which is not served: remove it, and what the "
                "model needs it for"
            )
    for tensor in (*message.input, *message.output):
        if tensor.is_shape_tensor and message.max_batch_size:
            raise InvalidModel(
                f"'{tensor.name}' of {message.name} is a shape tensor, which is not served in "
                "batches: set max_batch_size to 0"
            )
        if tensor.is_non_linear_format_io:
            raise InvalidModel(
                f"'{tensor.name}' of {message.name} has a format of its own, which is not served: "
                "build the engine with linear inputs and outputs, and remove "
                "is_non_linear_format_io"
            )


def _check_dynamic_batching(message: Any) -> None:
    name, batching = message.name, message.dynamic_batching
    if any(size <= 0 for size in batching.preferred_batch_size):
        raise InvalidModel(f"dynamic batching preferred size must be positive for {name}")
    # The engine may give the size later; it is checked again then.
    largest = message.max_batch_size
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


def _check_ordering(name: str, batching: Any) -> None:
    if batching.priority_levels > 1:
        raise InvalidModel(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        )
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        delays = policy.timeout_action == model_config_messages().ModelQueuePolicy.DELAY
        if delays and policy.default_timeout_microseconds:
            raise InvalidModel(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                f"true for {name}"
            )


def _check_tensor(message: Any, tensor: Any, prefix: str) -> None:
    if not tensor.name:
        raise InvalidModel(f"{prefix}must specify 'name' for {message.name}")
    about = f"{prefix}'{tensor.name}' "
    if tensor.data_type == model_config_messages().TYPE_INVALID:
        raise InvalidModel(f"{about}must specify 'data_type' for {message.name}")
    if not tensor.dims:
        raise InvalidModel(f"{about}must specify 'dims' for {message.name}")
    if any(dim < 1 and dim != -1 for dim in tensor.dims):
        raise InvalidModel(
            f"{about}dimension must be integer >= 1, or -1 to indicate a variable-size dimension "
            f"for {message.name}"
        )
    if tensor.HasField("reshape"):
        _check_reshape(message, tensor, about)


def _check_reshape(message: Any, tensor: Any, about: str) -> None:
    shape = tensor.reshape.shape
    if not shape and message.max_batch_size == 0:
        raise InvalidModel(
            f"{about}cannot have empty reshape for non-batching model as scalar tensors are not "
            f"supported for {message.name}"
        )
    if any(dim < 1 and dim != -1 for dim in shape):
        raise InvalidModel(
            f"{about}reshape dimensions must be integer >= 1, or -1 to indicate a variable-size "
            f"dimension for {message.name}"
        )
    dims, shapes = _trunks(tensor.dims), _trunks(shape)
    if len(dims) != len(shapes):
        raise InvalidModel(
            f"{about}has different number of variable-size dimensions for dims and reshape for "
            f"{message.name}"
        )
    if dims != shapes:
        raise InvalidModel(f"{about}has different size for dims and reshape for {message.name}")


def _trunks(dims: Any) -> list[int]:
    """Multiply the sizes between variable dimensions: [2, 4, -1, 6] gives 8 and 6."""
    counts = [1]
    for dim in dims:
        if dim == -1:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


def _check_format(message: Any, tensor: Any) -> None:
    kinds = model_config_messages().ModelInput
    if tensor.format != kinds.FORMAT_NONE and len(tensor.dims) != 3:
        raise InvalidModel(f"model input NHWC/NCHW require 3 dims for {message.name}")
    if tensor.allow_ragged_batch:
        raise InvalidModel(
            f"model input '{tensor.name}' of {message.name} asks for ragged batches, which are not "
            "served: remove allow_ragged_batch"
        )
