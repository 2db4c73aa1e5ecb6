"""Loads on a server, and the outcomes of their requests."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that send one request after another.

    If a response has Retry-After, the client waits for that time before its next request.
    """

    clients: int


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests at random times (a Poisson process), which do not wait for earlier responses.

    Attributes:
        rate: mean number of requests per second.
    """

    rate: float


Load = ClosedLoop | OpenLoop


@dataclass(frozen=True, slots=True)
class Burst:
    """A load, and the time for which it lasts.

    Attributes:
        load: the load.
        seconds: measured time in seconds. If it is None, each request is sent once, and the
            responses are kept.
        warmup_s: time in seconds under the same load before the measurement.
        timeout_s: time in seconds after which a request without a response fails; it is checked
            every 0.25 s.
    """

    load: Load
    seconds: float | None
    warmup_s: float = 0.0
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a server."""

    host: str
    port: int
    https: bool = False


@dataclass(slots=True)
class LoadSample:
    """The requests that ended since the last sample; `add` adds up the samples of one burst.

    Attributes:
        seconds: length of the burst so far, without its warm-up.
        in_time: number of responses that arrived in the measured time; the rate is based on it.
        latencies: for each response, the seconds from when its request was due until it arrived. In
            a closed loop, a request is due when it is sent.
        late: for each request, the seconds from when it was due until it was sent.
        errors: (status, code) -> (count, first message). The status is 0 if there was no response.
        stages: milliseconds in each stage of the server, summed over all responses.
        answers: body of each response, by the number of its request; empty unless the burst keeps
            the responses.
        cpu_s: CPU time that the load generator used, in seconds.
        began: True if the warm-up is over.
        ended: True for the last sample.
    """

    seconds: float = 0.0
    in_time: int = 0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    late: array[float] = field(default_factory=lambda: array("d"))
    errors: dict[tuple[int, str], tuple[int, str]] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    answers: dict[int, bytes] = field(default_factory=dict)
    cpu_s: float = 0.0
    began: bool = False
    ended: bool = False

    def add(self, more: LoadSample) -> None:
        """Add a later sample to this sample."""
        self.seconds, self.cpu_s = more.seconds, self.cpu_s + more.cpu_s
        self.in_time += more.in_time
        self.latencies.extend(more.latencies)
        self.late.extend(more.late)
        for key, (count, message) in more.errors.items():
            self.add_error(*key, message, count)
        for stage, ms in more.stages.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + ms
        self.answers |= more.answers
        self.began, self.ended = self.began or more.began, more.ended

    def add_error(self, status: int, code: str, message: str, count: int = 1) -> None:
        """Count requests that failed with the same error."""
        before, first = self.errors.get((status, code), (0, message))
        self.errors[status, code] = before + count, first
