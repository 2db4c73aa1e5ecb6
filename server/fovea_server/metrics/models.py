"""Metrics of models and of the response cache: Triton's families, and the stages of images.

Source: docs/user_guide/metrics.md of Triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from fovea_engines.repository.config_pbtxt import ModelConfig
from fovea_preprocess.errors import ModelNotReady
from fovea_server.images.stages import stage_family
from fovea_server.models.model import ServedModel, State
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.statistics.family import Family, Labels, gauge, label_name
from fovea_server.statistics.model import FailureReason, ModelStatistics

_COUNTERS = {
    "nv_inference_request_success": "Number of successful inference requests, all batch sizes",
    "nv_inference_request_failure": "Number of failed inference requests, all batch sizes",
    "nv_inference_count": "Number of inferences performed (does not include cached requests)",
    "nv_inference_exec_count": "Number of model executions performed (does not include cached "
    "requests)",
    "nv_inference_request_duration_us": "Cumulative inference request duration in microseconds "
    "(includes cached requests)",
    "nv_inference_queue_duration_us": "Cumulative inference queuing duration in microseconds "
    "(includes cached requests)",
    "nv_inference_compute_input_duration_us": "Cumulative compute input duration in microseconds "
    "(does not include cached requests)",
    "nv_inference_compute_infer_duration_us": "Cumulative compute inference duration in "
    "microseconds (does not include cached requests)",
    "nv_inference_compute_output_duration_us": "Cumulative inference compute output duration in "
    "microseconds (does not include cached requests)",
    "nv_cache_num_hits_per_model": "Number of cache hits per model",
    "nv_cache_num_misses_per_model": "Number of cache misses per model",
    "nv_cache_hit_duration_per_model": "Total cache hit duration per model, in microseconds",
    "nv_cache_miss_duration_per_model": "Total cache miss duration per model, in microseconds",
}
_PENDING = "nv_inference_pending_request_count"


def model_families(models: Iterable[ServedModel]) -> list[Family]:
    """Build the families of all models that can answer now."""
    families = {name: Family(name, "counter", text) for name, text in _COUNTERS.items()}
    families[_PENDING] = Family(
        _PENDING,
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
    )
    stages = stage_family()
    for model in models:
        if model.state is not State.READY:
            continue
        labels = _labels(model)
        for name, value in _counted(model.statistics, model.config):
            families[name].add(labels, value)
        for reason in FailureReason:
            count = model.statistics.failures[reason]
            families["nv_inference_request_failure"].add({**labels, "reason": reason}, count)
        _add_pending(families[_PENDING], stages, model, labels)
    return [*families.values(), stages]


def _counted(statistics: ModelStatistics, config: ModelConfig) -> Iterator[tuple[str, int]]:
    yield "nv_inference_request_success", statistics.success.count
    yield "nv_inference_count", statistics.inference_count
    yield "nv_inference_exec_count", statistics.execution_count
    yield "nv_inference_request_duration_us", statistics.success.ns // 1000
    for span in ("queue", "compute_input", "compute_infer", "compute_output"):
        yield f"nv_inference_{span}_duration_us", getattr(statistics, span).ns // 1000
    if config.response_cache.enable:
        for outcome, plural in (("hit", "hits"), ("miss", "misses")):
            duration = getattr(statistics, f"cache_{outcome}")
            yield f"nv_cache_num_{plural}_per_model", duration.count
            yield f"nv_cache_{outcome}_duration_per_model", duration.ns // 1000


def _labels(model: ServedModel) -> Labels:
    tags = {f"_{label_name(key)}": value for key, value in model.config.metric_tags.items()}
    return {"model": model.name, "version": str(model.version), **tags}


def _add_pending(pending: Family, stages: Family, model: ServedModel, labels: Labels) -> None:
    # The model may be unloaded meanwhile.
    with suppress(ModelNotReady):
        waiting = model.scheduler.pending
        if model.takes_images:
            waiting += model.pipeline.pending
            model.pipeline.counts.stages.add_to(stages, labels)
        pending.add(labels, waiting)


def cache_families(cache: ResponseCache) -> list[Family]:
    """Build the families of a cache."""
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
