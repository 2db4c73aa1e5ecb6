"""Makes the tracer of a server, whose packages are an extra."""

from __future__ import annotations

from fovea_engines.backends.installing import install_extra
from fovea_preprocess.errors import InvalidOption
from fovea_server.traffic.spans import Tracer


def tracer(ratio: float) -> Tracer:
    """Return a tracer for a share of the requests; InvalidOption where packages are missing."""
    try:
        # Its import takes a quarter of a second.
        from fovea_outbound.otel import OtelTracer
    except ModuleNotFoundError as error:
        raise InvalidOption(
            f"--otel needs packages that are not installed ({error.name}): "
            f"{install_extra('otel')}, or leave --otel out"
        ) from error
    return OtelTracer(ratio)
