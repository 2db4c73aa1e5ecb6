"""Metrics of what alerts are about: readiness, stores, and how near the server is to its limits."""

from __future__ import annotations

from fovea_server.dataplane.service import Service
from fovea_server.statistics.family import Family, gauge


def limit_families(service: Service) -> list[Family]:
    """Build the families of readiness, stores, the queues' limit and the bytes that are held."""
    budget = service.budget
    models = Family(
        "fovea_model_ready", "gauge", "1 if a version of the model can answer, 0 if none can"
    )
    for name, ready in service.plane.availability().items():
        models.add({"model": name}, int(ready))
    return [
        gauge("fovea_ready", "1 if the server takes requests, else 0", int(service.plane.ready)),
        models,
        gauge(
            "fovea_queue_limit_requests",
            "Most requests of one model accepted and not yet answered (--max-queue)",
            service.settings.max_queue,
        ),
        gauge(
            "fovea_store_faults",
            "Stores that could not be pulled last time, and models of stores that are refused",
            service.plane.store_faults(),
        ),
        gauge(
            "fovea_held_bytes", "Bytes of requests and unsent answers that are held", budget.held
        ),
        gauge(
            "fovea_decoding_bytes",
            "Bytes that large images take while they are decoded, at most",
            budget.pixels,
        ),
        gauge(
            "fovea_held_limit_bytes",
            "Most bytes of requests and unsent answers (--max-held-mb)",
            budget.limit,
        ),
    ]
