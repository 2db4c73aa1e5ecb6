"""All metrics of the server except the metrics of the machine, in the text format of Prometheus.

Source: docs/user_guide/metrics.md of Triton defines the names that begin with nv_; the client
libraries of Prometheus define the names that begin with process_.
"""

from __future__ import annotations

import platform
import resource
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import psutil

from fovea_engines.device import memory
from fovea_preprocess.errors import ModelNotReady
from fovea_server.dataplane.service import Service
from fovea_server.feature import Feature
from fovea_server.metrics.machine import MachineMetrics
from fovea_server.models.model import ServedModel, State
from fovea_server.observability.histogram import Family, Labels, gauge, label_name, render
from fovea_server.observability.model_statistics import FailureReason, ModelStatistics, stage_family
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.traffic.principal import Principal

FORMER = {
    "fovea_batch_size": "fovea_batch_rows",
    "fovea_inflight_bytes": "fovea_held_bytes",
    "fovea_inflight_limit_bytes": "fovea_held_limit_bytes",
    "fovea_inflight_requests": "fovea_accepted_requests",
    "fovea_repository_sync_errors": "fovea_store_faults",
    "fovea_stream_frame_age_seconds": "fovea_stream_age_seconds",
    "fovea_stream_sink_up": "fovea_stream_receiver_up",
}
"""New name of each metric -> its name in 0.1.0. Metrics are written under both names until 0.3."""

# Upper bounds of the buckets in the histogram of batch sizes, in rows.
_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128)
_Counters = dict[str, tuple[str, Callable[[ModelStatistics], int]]]

_BUILD = {
    "version": version("fovea-serve"),
    "python": platform.python_version(),
    "system": platform.system(),
    "machine": platform.machine(),
}
_COUNTERS: _Counters = {
    "nv_inference_request_success": (
        "Number of successful inference requests, all batch sizes",
        lambda of: of.success.count,
    ),
    "nv_inference_count": (
        "Number of inferences performed (does not include cached requests)",
        lambda of: of.inference_count,
    ),
    "nv_inference_exec_count": (
        "Number of model executions performed (does not include cached requests)",
        lambda of: of.execution_count,
    ),
    "nv_inference_request_duration_us": (
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda of: of.success.ns // 1000,
    ),
    "nv_inference_queue_duration_us": (
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda of: of.queue.ns // 1000,
    ),
    "nv_inference_compute_input_duration_us": (
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda of: of.compute_input.ns // 1000,
    ),
    "nv_inference_compute_infer_duration_us": (
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda of: of.compute_infer.ns // 1000,
    ),
    "nv_inference_compute_output_duration_us": (
        "Cumulative inference compute output duration in microseconds (does not include cached "
        "requests)",
        lambda of: of.compute_output.ns // 1000,
    ),
}
_OF_CACHED_MODELS: _Counters = {
    "nv_cache_num_hits_per_model": (
        "Number of cache hits per model",
        lambda of: of.cache_hit.count,
    ),
    "nv_cache_num_misses_per_model": (
        "Number of cache misses per model",
        lambda of: of.cache_miss.count,
    ),
    "nv_cache_hit_duration_per_model": (
        "Total cache hit duration per model, in microseconds",
        lambda of: of.cache_hit.ns // 1000,
    ),
    "nv_cache_miss_duration_per_model": (
        "Total cache miss duration per model, in microseconds",
        lambda of: of.cache_miss.ns // 1000,
    ),
}


def metrics_text(
    service: Service,
    features: Iterable[Feature],
    machine: MachineMetrics,
    principal: Principal | None,
) -> str:
    """Return the metrics of a service, its process and its machine in Prometheus' text format.

    `principal` is the holder of the client's key. If the key permits only some models, metrics of
    other models, of other keys and of streams are left out.
    """
    cache = service.models.cache
    families = [
        *model_families(service.models),
        *(cache_families(cache) if cache is not None else ()),
        service.traffic.durations.family(service.models.availability()),
        *service.traffic.keys.families(),
        *(family for feature in features for family in feature.families()),
        *limit_families(service),
        *process_families(),
        *machine.families(),
    ]
    if principal is not None and principal.models:
        for family in families:
            family.samples = [each for each in family.samples if _is_for(principal, each[1])]
    return render(with_former_names(families))


def with_former_names(families: Iterable[Family]) -> list[Family]:
    """Return the families, and after them the families that 0.1.0 knew under other names."""
    families = list(families)
    return families + [
        replace(family, name=FORMER[family.name], help=f"Former name of {family.name}, until 0.3")
        for family in families
        if family.name in FORMER
    ]


def _is_for(principal: Principal, labels: Labels) -> bool:
    if (model := labels.get("model")) is not None:
        return principal.takes(model)
    return "stream" not in labels and labels.get("key", principal.label) == principal.label


def model_families(models: Iterable[ServedModel]) -> list[Family]:
    """Return the metric families of all models that can respond now."""
    counters = _COUNTERS | _OF_CACHED_MODELS
    success, *others = (Family(name, "counter", text) for name, (text, _) in counters.items())
    failure = Family(
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
    )
    families = {family.name: family for family in (success, *others)}
    pending = Family(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
    )
    accepted = Family(
        "fovea_inflight_requests",
        "gauge",
        "Requests in flight; each image counts as a request",
    )
    stages, batches = stage_family(), batch_family()
    for model in models:
        if model.state is not State.READY:
            continue
        labels = _labels(model)
        counted = counters if model.config.response_cache.enable else _COUNTERS
        for name, (_, read) in counted.items():
            families[name].add(labels, read(model.statistics))
        for reason in FailureReason:
            failure.add({**labels, "reason": reason}, model.statistics.failures[reason])
        # A model that was unloaded meanwhile is left out.
        with suppress(ModelNotReady):
            pending.add(labels, model.scheduler.pending)
            accepted.add(labels, model.scheduler.accepted)
        add_batches(batches, labels, model.statistics.batch_sizes())
        if model.takes_images:
            model.statistics.stages.add_to(stages, labels)
    return [success, failure, *others, pending, accepted, batches, stages]


def _labels(model: ServedModel) -> Labels:
    tags = {f"_{label_name(key)}": value for key, value in model.config.metric_tags.items()}
    return {"model": model.name, "version": str(model.version), **tags}


def cache_families(cache: ResponseCache) -> list[Family]:
    """Return the metric families of the response cache."""
    done = cache.statistics
    return [
        gauge("nv_cache_util", "Cache utilization [0.0 - 1.0]", cache.used / max(cache.size, 1)),
        gauge("nv_cache_num_entries", "Number of responses stored in response cache", len(cache)),
        gauge(
            "nv_cache_num_lookups", "Number of cache lookups in response cache", done.lookups.count
        ),
        gauge("nv_cache_num_hits", "Number of cache hits in response cache", done.hits),
        gauge("nv_cache_num_misses", "Number of cache misses in response cache", done.misses),
        gauge(
            "nv_cache_num_evictions", "Number of cache evictions in response cache", done.evictions
        ),
        gauge(
            "nv_cache_lookup_duration",
            "Total cache lookup duration (hit and miss), in microseconds",
            done.lookups.ns // 1000,
        ),
        gauge(
            "nv_cache_insertion_duration",
            "Total cache insertion duration, in microseconds",
            done.insertions.ns // 1000,
        ),
    ]


def process_families() -> list[Family]:
    """Return the metric families of this process: memory, files, times and the build."""
    # psutil is used, because the process metrics of prometheus-client are empty on macOS.
    process = psutil.Process()
    with process.oneshot():
        used, times = process.memory_info(), process.cpu_times()
        started, files = process.create_time(), process.num_fds()
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    build = Family(
        "fovea_build_info",
        "gauge",
        "Always 1; the labels have the versions of Fovea and Python, and the machine",
    )
    build.add(_BUILD, 1)
    cpu = Family(
        "process_cpu_seconds_total", "counter", "User and system CPU time spent in seconds"
    )
    cpu.add({}, times.user + times.system)
    return [
        build,
        cpu,
        gauge("process_resident_memory_bytes", "Resident memory size in bytes", used.rss),
        gauge(
            "fovea_memory_limit_bytes",
            "Memory of the machine, or of the container if its limit is lower, in bytes",
            memory(Path("/")).total,
        ),
        gauge("process_virtual_memory_bytes", "Virtual memory size in bytes", used.vms),
        gauge("process_open_fds", "Number of open file descriptors", files),
        gauge("process_max_fds", "Maximum number of open file descriptors", most_files),
        gauge("process_start_time_seconds", "Start time since the Unix epoch in seconds", started),
    ]


def batch_family() -> Family:
    """Make the family of batch sizes, without samples."""
    return Family("fovea_batch_size", "histogram", "Batch size of each execution of a model")


def add_batches(family: Family, labels: Labels, executions: Mapping[int, int]) -> None:
    """Add the histogram of a model's batch sizes.

    `executions` is the number of executions for each batch size.
    """
    for bound in _BOUNDS:
        count = sum(times for rows, times in executions.items() if rows <= bound)
        family.add({**labels, "le": str(float(bound))}, count, "_bucket")
    total = sum(executions.values())
    family.add({**labels, "le": "+Inf"}, total, "_bucket")
    family.add(labels, total, "_count")
    family.add(labels, sum(rows * times for rows, times in executions.items()), "_sum")


def limit_families(service: Service) -> list[Family]:
    """Return the metric families of readiness, remote stores, queue limit, and memory in use."""
    budget = service.budget
    models = Family("fovea_model_ready", "gauge", "1 if a version of the model is ready, else 0")
    for name, ready in service.models.availability().items():
        models.add({"model": name}, int(ready))
    return [
        gauge(
            "fovea_ready",
            "1 if the server is ready for requests, else 0",
            int(service.models.ready),
        ),
        models,
        gauge(
            "fovea_queue_limit_requests",
            "Largest allowed number of requests in flight per model (--max-queue)",
            service.settings.max_queue,
        ),
        gauge(
            "fovea_repository_sync_errors",
            "Number of stores that could not be pulled at the last try, and of rejected models in "
            "stores",
            service.models.store_faults(),
        ),
        gauge(
            "fovea_inflight_bytes",
            "Memory of requests and unsent responses, in bytes",
            budget.held,
        ),
        gauge(
            "fovea_decoding_bytes",
            "Memory that is reserved to decode large images, in bytes",
            budget.pixels,
        ),
        gauge(
            "fovea_inflight_limit_bytes",
            "Limit for the memory of requests and unsent responses, in bytes (--max-inflight-mb)",
            budget.limit,
        ),
    ]
