"""Flags of Triton that are not settings of Fovea.

They are accepted, so that Triton's command lines work unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from fovea_preprocess.errors import InvalidOption
from fovea_server.settings import flag

_BUILT_IN = "Fovea loads no plugins"
_MEMORY = "memory is allocated on demand"
_MEASURED = "hardware metrics are always on"
_KEEPALIVE = "the default limits of gRPC apply"
_CLOUD = "Fovea has no endpoints for this service"

WITHOUT_EFFECT = {
    "allow_cpu_metrics": _MEASURED,
    "allow_gpu_metrics": _MEASURED,
    "backend_config": "`fovea build` tunes engines, and config.pbtxt configures models",
    "backend_directory": _BUILT_IN,
    "buffer_manager_thread_count": "Fovea does not copy tensors in threads",
    "cache_directory": _BUILT_IN,
    "cuda_memory_pool_byte_size": _MEMORY,
    "cuda_virtual_address_size": _MEMORY,
    "enable_peer_access": "Fovea uses one GPU",
    "grpc_http2_max_ping_strikes": _KEEPALIVE,
    "grpc_http2_max_pings_without_data": _KEEPALIVE,
    "grpc_http2_min_recv_ping_interval_without_data": _KEEPALIVE,
    "grpc_infer_allocation_pool_size": _MEMORY,
    "grpc_max_connection_age": _KEEPALIVE,
    "grpc_max_connection_age_grace": _KEEPALIVE,
    "host_policy": "use --threads, or numactl",
    "http_thread_count": "one event loop serves HTTP",
    "metrics_config": "the metrics cannot be configured",
    "min_supported_compute_capability": "engines record the GPUs that they run on",
    "model_load_gpu_limit": "a model that does not fit into memory fails to load",
    "model_load_retry_count": "a failed load is not retried: request it again",
    "pinned_memory_pool_byte_size": _MEMORY,
    "rate_limit_resource": "there is no rate limiter",
    "repoagent_directory": _BUILT_IN,
    "reuse_grpc_port": "two servers cannot share a port",
    "reuse_http_port": "two servers cannot share a port",
    "sagemaker_port": _CLOUD,
    "sagemaker_safe_port_range": _CLOUD,
    "sagemaker_thread_count": _CLOUD,
    "vertex_ai_default_model": _CLOUD,
    "vertex_ai_port": _CLOUD,
    "vertex_ai_thread_count": _CLOUD,
}
"""Flags that are ignored -> the reason why they have no effect."""

_OFF = ("false", "0", "off", "")

REFUSED = {
    "allow_sagemaker": "SageMaker's endpoints are not served: use those of the v2 protocol",
    "allow_vertex_ai": "Vertex AI's endpoints are not served: use those of the v2 protocol",
    "grpc_header_forward_pattern": "headers are not forwarded to models: send them as parameters",
    "http_header_forward_pattern": "headers are not forwarded to models: send them as parameters",
    "model_namespacing": "models have no namespaces: give each model a different name",
    "rate_limit": "there is no rate limiter: limit executions with instance_group in config.pbtxt",
}
"""Flags that are rejected if they enable a feature -> what to do instead."""

RENAMED = {
    "response_cache_byte_size": ("cache_config", "local,size={}"),
    "strict_model_config": ("disable_auto_complete_config", "{}"),
    "trace_count": ("trace_config", "count={}"),
    "trace_file": ("trace_config", "triton,file={}"),
    "trace_level": ("trace_config", "level={}"),
    "trace_log_frequency": ("trace_config", "triton,log-frequency={}"),
    "trace_rate": ("trace_config", "rate={}"),
}
"""Former flags -> the setting that replaced them, and the format of its value."""


def translate_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the flags of a command line to settings, and report flags without effect.

    The keys of `given` are names of settings and of the flags above. The value of a flag that was
    not typed is None.

    Raises:
        InvalidOption: a flag requires a feature that Fovea lacks.
    """
    settings = {name: value for name, value in given.items() if value not in (None, [], ())}
    for name, instead in REFUSED.items():
        if settings.pop(name, "").lower() not in _OFF:
            raise InvalidOption(f"{flag(name)} is not supported: {instead}")
    for name, reason in WITHOUT_EFFECT.items():
        if settings.pop(name, None) is not None:
            typer.echo(f"{flag(name)} has no effect in Fovea: {reason}", err=True)
    for name, (setting, form) in RENAMED.items():
        value = settings.pop(name, None)
        if value is None:
            continue
        value = form.format(value)
        if setting == "trace_config":
            settings[setting] = [*settings.get(setting, []), value]
        else:
            settings.setdefault(setting, value)
    return settings
