"""A burst of load in closed loop, by the generator of `fovea bench`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

from fovea_server.bench.level import Level
from fovea_server.bench.load import Burst, ClosedLoop, Endpoint
from fovea_server.bench.sender import apply


@dataclass(frozen=True)
class Loaded:
    """What a burst of load measured.

    Attributes:
        requests: answered in all; perf_analyzer's also before its windows and between them.
        rate: requests/s.
        p50_ms: half of them took at most so long.
        p99_ms: 99 in a hundred of them.
        generator_cpu: cores that the generator took.
    """

    requests: int
    rate: float
    p50_ms: float
    p99_ms: float
    generator_cpu: float


def http_load(port: int, requests: Sequence[bytes], clients: int, seconds: float) -> Loaded:
    """Keep `clients` requests under way; every answer must be 200.

    Args:
        port: of this machine.
        requests: head and body, as they go over the wire; sent in turn.
        clients: connections, each with one request at a time.
        seconds: length of the burst.
    """
    level = Level(ClosedLoop(clients))
    # On a busy machine a crowd waits for long.
    burst = Burst(level.load, seconds, timeout_s=120.0)
    uvloop.run(apply(Endpoint("127.0.0.1", port), requests, burst, level.sample.add))
    if level.sample.errors:
        raise SystemExit(f"not every answer was right: {level.sample.errors}")
    return Loaded(
        requests=len(level.sample.latencies),
        rate=level.rate,
        p50_ms=level.latency_ms(50) or 0.0,
        p99_ms=level.latency_ms(99) or 0.0,
        generator_cpu=level.generator_cpu,
    )
