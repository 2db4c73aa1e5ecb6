"""Metrics of the response cache, over all models.

Source: docs/user_guide/metrics.md of Triton, "Triton-reported Response Cache Metrics".
"""

from __future__ import annotations

from fovea_server.scheduling.cache import ResponseCache
from fovea_server.statistics.family import Family, gauge


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
