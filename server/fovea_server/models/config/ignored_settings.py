"""Warns of settings in a configuration that have no effect in this server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

log = logging.getLogger(__name__)

_OPTIMIZATIONS = (
    "execution_accelerators",
    "graph",
    "priority",
    "eager_batching",
    "gather_kernel_buffer_threshold",
)
_INSTANCES = ("rate_limiter", "host_policy", "profile", "secondary_devices")
_WHOLE = ("runtime", "model_operations", "model_repository_agents", "model_metrics")
# Parameters for Triton's backends; clients read all others in the configuration.
_PARAMETERS = frozenset(
    {
        # onnxruntime_backend
        "intra_op_thread_count",
        "inter_op_thread_count",
        "execution_mode",
        "enable_mem_arena",
        "enable_mem_pattern",
        "memory.enable_memory_arena_shrinkage",
        "cudnn_conv_algo_search",
        "cudnn_conv_use_max_workspace",
        "gpu_mem_limit",
        "arena_extend_strategy",
        "do_copy_in_default_stream",
        "share_session_between_instances",
        # openvino_backend
        "CPU_EXTENSION_PATH",
        "INFERENCE_NUM_THREADS",
        "NUM_STREAMS",
        "PERFORMANCE_HINT",
        # tensorrt_backend
        "execution_context_allocation_strategy",
    }
)


def warn_of_ignored_settings(message: Any) -> None:
    """Log the ignored settings of a `ModelConfig` message in one line, if there are any."""
    if names := list(_of(message)):
        log.warning(
            "model %s: its configuration says what has no effect here: %s",
            message.name,
            ", ".join(names),
        )


def _of(message: Any) -> Iterator[str]:
    for part, fields in ((message.optimization, _OPTIMIZATIONS), (message, _WHOLE)):
        said = {field.name for field, _ in part.ListFields()}
        prefix = "optimization." if part is not message else ""
        yield from (f"{prefix}{name}" for name in fields if name in said)
    groups = message.instance_group
    said = {field.name for group in groups for field, _ in group.ListFields()}
    yield from (f"instance_group.{name}" for name in _INSTANCES if name in said)
    if any(len(group.gpus) > 1 for group in groups):
        yield "instance_group.gpus (one GPU is used)"
    yield from (f"parameters.{name}" for name in sorted(_PARAMETERS & message.parameters.keys()))
    if message.model_transaction_policy.decoupled:
        yield "model_transaction_policy.decoupled (a request has one answer)"
    if message.ensemble_scheduling.max_inflight_requests:
        yield "ensemble_scheduling.max_inflight_requests"
